"""lm-evaluation-harness against `switchyard serve`, and against transformers with the same weights.

Makes a small random mixtral in float32 with a tokenizer of bytes, asks both by lm-eval's own code (`local-completions` and
`hf`) for a multiple-choice, a rolling-perplexity and a generate task of a few lines, and compares every log-likelihood and
every text. Needs lm-eval[api]==0.4.13, torch and transformers, and nothing from the network. Prints a line of JSON; exit status
1 where something differs.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")

CHOICES = [
    {"question": "The sky is", "choices": [" blue", " a kind of fish", " 17"], "answer": 0},
    {"question": "Two and two make", "choices": [" four", " a house"], "answer": 0},
    {"question": "Water boils at", "choices": [" night", " one hundred degrees", " sea"], "answer": 1},
]
TEXTS = [{"text": "To be or not to be, that is the question."}, {"text": "All that glitters is not gold."}]
TASKS = {
    "sy_choice": (CHOICES, {"output_type": "multiple_choice", "doc_to_text": "{{question}}",
                            "doc_to_choice": "{{choices}}", "doc_to_target": "answer",
                            "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}]}),
    "sy_rolling": (TEXTS, {"output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{text}}",
                           "metric_list": [{"metric": "byte_perplexity"}]}),
    "sy_generate": (CHOICES, {"output_type": "generate_until", "doc_to_text": "{{question}}", "doc_to_target": "x",
                              "generation_kwargs": {"until": ["\n\n"], "max_gen_toks": 12, "do_sample": False},
                              "metric_list": [{"metric": "exact_match"}]}),
}


def make_model(folder):
    import tokenizers
    import torch
    import transformers

    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocab = {"<eos>": 0, **{letter: i + 1 for i, letter in enumerate(letters)}}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(["<eos>"])
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", bos_token="<eos>",
                                         pad_token="<eos>").save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.MixtralConfig(
        vocab_size=len(vocab), hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2, max_position_embeddings=512,
        initializer_range=0.2, bos_token_id=0, eos_token_id=0, sliding_window=None)
    transformers.MixtralForCausalLM(config).float().save_pretrained(folder)


def make_tasks(folder):
    import yaml

    for name, (rows, keys) in TASKS.items():
        data = folder / f"{name}.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        task = {"task": name, "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}},
                "test_split": "test", **keys}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(task))


def serve(switchyard, model, folder):
    where = folder / "serve.json"
    server = subprocess.Popen([switchyard, "serve", str(model), "dtype=float32", "weight_dtype=float32", "add_bos=false",
                               "max_target_length=512", "--port", "0", "--json", str(where)])
    while not where.exists():
        if server.poll() is not None:
            sys.exit(f"switchyard serve ended with status {server.returncode}")
        time.sleep(0.1)
    return server, json.loads(where.read_text())


def evaluate(kind, model_args, tasks):
    import lm_eval

    manager = lm_eval.tasks.TaskManager(include_path=str(tasks), include_defaults=False)
    return lm_eval.simple_evaluate(model=kind, model_args=model_args, tasks=list(TASKS), task_manager=manager,
                                   batch_size=4, log_samples=True, bootstrap_iters=0)


def numbers_of(response):
    return [float(part) for part in response if isinstance(part, (int, float))] if isinstance(response, (list, tuple)) else [
        float(response)]


def compare(ours, theirs):
    """Largest difference of log-likelihoods, how many there are, and all texts that are not the same."""
    apart, count, other = 0.0, 0, []
    for name in TASKS:
        by_doc = {sample["doc_id"]: sample for sample in theirs["samples"][name]}
        for sample in ours["samples"][name]:
            for own, wanted in zip(sample["filtered_resps"], by_doc[sample["doc_id"]]["filtered_resps"], strict=True):
                if isinstance(own, str):
                    other += [] if own == wanted else [[own, wanted]]
                    continue
                for a, b in zip(numbers_of(own), numbers_of(wanted), strict=True):
                    apart, count = max(apart, abs(a - b)), count + 1
    return apart, count, other


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--switchyard", default="build/release/switchyard")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        model = folder / "model"
        make_model(str(model))
        make_tasks(folder)
        server, told = serve(args.switchyard, model, folder)
        try:
            url = f"http://{told['host']}:{told['port']}/v1/completions"
            ours = evaluate("local-completions",
                            {"model": told["model"], "base_url": url, "tokenizer": str(model), "max_length": 512,
                             "num_concurrent": 2, "max_retries": 1, "tokenizer_backend": "huggingface"}, folder)
        finally:
            server.terminate()
            server.wait()
        theirs = evaluate("hf", {"pretrained": str(model), "dtype": "float32", "device": "cpu", "max_length": 512}, folder)
    apart, count, other = compare(ours, theirs)
    scores = {name: [{key: value for key, value in run["results"][name].items() if isinstance(value, float)}
                     for run in (ours, theirs)] for name in TASKS}
    good = apart < 1e-3 and not other
    print(json.dumps({"log_likelihoods": count, "largest_difference": apart, "other_texts": other, "scores": scores,
                      "same": good}))
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()

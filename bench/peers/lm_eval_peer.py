"""lm-evaluation-harness against `switchyard serve`, and against transformers with the same weights.

Makes a small random mixtral in float32 with a tokenizer of bytes, asks both by lm-eval's own code
(`local-completions` and `hf`) for a multiple-choice, a rolling-perplexity and two generate tasks of a few lines, and
compares every log-likelihood, whether each continuation is the most probable one, and every text. `serve` is asked
twice: for lists of tokens, several at once, and for texts, one after the other.

Needs lm-eval[api,hf]==0.4.13, with torch and transformers, and nothing from the network. Prints a line of JSON; exit
status 1 where something differs.
"""

import argparse
import importlib.metadata
import json
import math
import os
import pathlib
import string
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")

CAPACITY = 512  # tokens of a request
WAYS = {"tokens": (4, {"num_concurrent": 2, "tokenized_requests": True}),  # batch size and other keys
        "texts": (1, {"num_concurrent": 1, "tokenized_requests": False})}
# lm-eval reads sums of float32 from transformers: of a long text they have a relative error, too.
ABSOLUTE, RELATIVE = 1e-4, 1e-6

LONG = " ".join(f"{n} and {n} make {2 * n}." for n in range(60))  # has more than CAPACITY tokens
CHOICES = [
    {"question": "The sky is", "choices": [" blue", " a kind of fish", " 17"], "answer": 0},
    {"question": "Two and two make", "choices": [" four", " a house"], "answer": 0},
    {"question": "Water boils at", "choices": [" night", " one hundred degrees", " sea"], "answer": 1},
    {"question": "Où est l'été ?", "choices": [" à côté", " 日本", " здесь 🙂"], "answer": 0},
]
TEXTS = ["To be or not to be, that is the question.", "All that glitters is not gold.", "¿Qué? 日本語 – ничего 🙂",
         LONG]
GENERATE = {"output_type": "generate_until", "doc_to_text": "{{question}}", "doc_to_target": "x",
            "metric_list": [{"metric": "exact_match"}]}


def tasks_of(greedy):
    """Of each task its rows and its keys."""
    cut = {"question": LONG, "choices": [" So it goes on.", " No"], "answer": 0}
    return {
        "sy_choice": (CHOICES + greedy + [cut],
                      {"output_type": "multiple_choice", "doc_to_text": "{{question}}", "doc_to_choice": "{{choices}}",
                       "doc_to_target": "answer", "target_delimiter": "",
                       "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}]}),
        "sy_rolling": ([{"text": text} for text in TEXTS],
                       {"output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{text}}",
                        "metric_list": [{"metric": "byte_perplexity"}]}),
        "sy_generate": (CHOICES, {"generation_kwargs": {"until": ["\n\n"], "max_gen_toks": 12, "do_sample": False},
                                  **GENERATE}),
        "sy_stop": (CHOICES + greedy, {"generation_kwargs": {"until": list("aeinost E"), "max_gen_toks": 40,
                                                             "do_sample": False}, **GENERATE}),
    }


def make_model(folder):
    """Writes the model; returns rows of which the first choice is what it finds most probable, token by token."""
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
        num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2, max_position_embeddings=CAPACITY,
        initializer_range=0.2, bos_token_id=0, eos_token_id=0, sliding_window=None)
    model = transformers.MixtralForCausalLM(config).float().eval()
    model.save_pretrained(folder)

    rows = []
    with torch.inference_mode():
        for question in string.ascii_letters:
            answer = ""
            while len(answer) < 3:
                logits = model(torch.tensor([tokenizer.encode(question + answer).ids])).logits[0, -1]
                letter = tokenizer.decode([int(logits.argmax())])
                if not ("!" <= letter <= "~"):  # a part of a character, or a space, which lm-eval would move
                    break
                answer += letter
            if answer:
                rows.append({"question": question, "choices": [answer, "x" + answer], "answer": 0})
    rows.sort(key=lambda row: -len(row["choices"][0]))
    return rows[:6]


def make_tasks(folder, tasks):
    import yaml

    for name, (rows, keys) in tasks.items():
        data = folder / f"{name}.jsonl"
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        task = {"task": name, "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}},
                "test_split": "test", **keys}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(task))


def serve(switchyard, model, folder):
    where = folder / "serve.json"
    server = subprocess.Popen([switchyard, "serve", str(model), "dtype=float32", "weight_dtype=float32",
                               "add_bos=false", f"max_target_length={CAPACITY}", "--port", "0", "--json", str(where)],
                              stdout=sys.stderr)
    while not where.exists():
        if server.poll() is not None:
            sys.exit(f"switchyard serve ended with status {server.returncode}")
        time.sleep(0.1)
    return server, json.loads(where.read_text())


def evaluate(kind, model_args, folder, tasks, batch_size):
    import lm_eval
    import lm_eval.tasks

    manager = lm_eval.tasks.TaskManager(include_path=str(folder), include_defaults=False)
    return lm_eval.simple_evaluate(model=kind, model_args=model_args, tasks=list(tasks), task_manager=manager,
                                   batch_size=batch_size, log_samples=True, bootstrap_iters=0)


def answers_of(run, tasks):
    """All answers of a run, in the order of tasks, rows and choices: [log-likelihood, is greedy or None] or a text."""
    answers = []
    for name in tasks:
        for sample in sorted(run["samples"][name], key=lambda sample: sample["doc_id"]):
            for answer in sample["filtered_resps"]:
                if isinstance(answer, str):
                    answers.append(answer)
                elif isinstance(answer, (tuple, list)):
                    answers.append([float(answer[0]), bool(answer[1])])
                else:
                    answers.append([float(answer), None])
    return answers


def compare(ours, theirs):
    """How many answers there are of each kind, the largest difference, and all answers that are not the same."""
    found = {"log_likelihoods": 0, "greedy": 0, "texts": 0, "largest_difference": 0.0, "other": []}
    for own, wanted in zip(ours, theirs, strict=True):
        if isinstance(wanted, str):
            found["texts"] += 1
            same = own == wanted
        else:
            found["log_likelihoods"] += 1
            found["greedy"] += bool(wanted[1])
            found["largest_difference"] = max(found["largest_difference"], abs(own[0] - wanted[0]))
            same = math.isclose(own[0], wanted[0], abs_tol=ABSOLUTE, rel_tol=RELATIVE) and own[1] == wanted[1]
        if not same:
            found["other"].append([own, wanted])
    return found


def versions_of(switchyard):
    told = subprocess.run([switchyard, "--version"], check=True, capture_output=True, text=True).stdout.split()
    return {"switchyard": told[-1],
            **{name: importlib.metadata.version(name).split("+")[0] for name in ("lm_eval", "torch", "transformers")}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--switchyard", default="build/release/switchyard")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        os.environ["HF_HOME"] = str(folder / "cache")
        model = folder / "model"
        tasks = tasks_of(make_model(str(model)))
        make_tasks(folder, tasks)
        server, told = serve(args.switchyard, model, folder)
        try:
            url = f"http://{told['host']}:{told['port']}/v1/completions"
            runs = {way: evaluate("local-completions",
                                  {"model": told["model"], "base_url": url, "tokenizer": str(model),
                                   "max_length": CAPACITY, "max_retries": 1, **keys}, folder, tasks, batch_size)
                    for way, (batch_size, keys) in WAYS.items()}
        finally:
            server.terminate()
            server.wait()
        # local-completions keeps a token of a request for what it makes, and one for the beginning of a window:
        # with so many tokens `hf` cuts texts at the same places.
        runs["transformers"] = evaluate("hf", {"pretrained": str(model), "dtype": "float32", "device": "cpu",
                                               "max_length": CAPACITY - 2}, folder, tasks, 4)
    answers = {way: answers_of(run, tasks) for way, run in runs.items()}
    found = {way: compare(answers[way], answers["transformers"]) for way in WAYS}
    scores = {name: {way: {key: value for key, value in run["results"][name].items() if isinstance(value, float)}
                     for way, run in runs.items()} for name in tasks}
    good = not any(of_way["other"] for of_way in found.values())
    print(json.dumps({"same": good, "compared": found, "scores": scores, "versions": versions_of(args.switchyard)}))
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()

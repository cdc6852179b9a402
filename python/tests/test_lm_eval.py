"""The model class for lm-evaluation-harness against the real one, and against its own model of `switchyard serve`."""

import json
import os
import shutil
import subprocess
import sys


import pytest
from conftest import MODEL, ROOT

import switchyard

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")
pytest.importorskip("lm_eval")
pytest.importorskip("transformers")
pytest.importorskip("aiohttp")

CAPACITY = 64
TASKS = ["sy_choice", "sy_rolling", "sy_generate"]
KEYS = dict(dtype="float32", weight_dtype="float32", max_target_length=CAPACITY)
TEMPLATE = "{% for m in messages %}<|begin|>{{ m.role }}: {{ m.content }}{% endfor %}"
TEMPLATE += "{% if add_generation_prompt %}<|begin|>assistant:{% endif %}"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A Hugging Face folder with a tokenizer of 504 ids, that transformers reads as well."""
    folder = tmp_path_factory.mktemp("lm_eval") / "model"
    shape = dict(base_emb_dim=32, base_num_query_heads=2, base_num_kv_heads=2, head_dim=16, base_mlp_dim=32)
    shape |= dict(base_moe_mlp_dim=32, base_num_decoder_layers=2, num_experts=4, num_experts_per_tok=2, vocab_size=504)
    with switchyard.Engine.open(
        decoder_block="qwen3_moe", use_qk_norm=True, norm_topk_prob=True, **shape, **KEYS
    ) as made:
        made.export(folder)
    shutil.copy(ROOT / "tests/golden/tokenizer/llama3.json", folder / "tokenizer.json")
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|begin|>", "eos_token": "<|end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, "chat_template": TEMPLATE}))
    return folder


def evaluate(kind, model_args, monkeypatch, tmp_path, **more):
    import lm_eval
    import lm_eval.tasks

    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    tasks = lm_eval.tasks.TaskManager(include_path=str(ROOT / "python/tests/lm_eval"), include_defaults=False)
    return lm_eval.simple_evaluate(
        model=kind,
        model_args=model_args,
        tasks=TASKS,
        task_manager=tasks,
        log_samples=True,
        bootstrap_iters=0,
        **more,
    )


def answers_of(run):
    return [
        answer
        for task in TASKS
        for sample in sorted(run["samples"][task], key=lambda sample: sample["doc_id"])
        for answer in sample["filtered_resps"]
    ]


def same(ours, theirs):
    if isinstance(theirs, str):
        return ours == theirs
    if isinstance(theirs, (tuple, list)):
        return abs(ours[0] - theirs[0]) < 1e-4 and ours[1] == theirs[1]
    return abs(ours - theirs) < 1e-4


def test_numbers_are_those_of_serve(model, monkeypatch, tmp_path, caplog):
    import switchyard.lm_eval  # registers the class

    # local-completions keeps a token of a request for what `serve` makes.
    keys = {"model": str(model), **KEYS, "max_target_length": CAPACITY - 1, "max_gen_toks": 12}
    ours = evaluate("switchyard", keys, monkeypatch, tmp_path, batch_size=4)
    assert len([line for line in caplog.messages if "cut at the left" in line]) == 1
    with switchyard.Server(model, **KEYS, per_device_batch_size=4, add_bos=False) as server:
        keys = {"base_url": server.url + "/v1/completions", "tokenizer": str(model), "max_length": CAPACITY}
        keys |= {"model": "model", "max_retries": 1, "num_concurrent": 2, "tokenizer_backend": "huggingface"}
        theirs = evaluate("local-completions", keys, monkeypatch, tmp_path, batch_size=2)
    found, wanted = answers_of(ours), answers_of(theirs)
    assert len(found) == len(wanted) > 20 and any(isinstance(one, str) and one for one in found)
    assert [pair for pair in zip(found, wanted) if not same(*pair)] == []
    for task in TASKS:
        for name, value in theirs["results"][task].items():
            if isinstance(value, float):
                assert ours["results"][task][name] == pytest.approx(value, abs=1e-4), name


@pytest.fixture(scope="module")
def lm(model):
    from switchyard.lm_eval import SwitchyardLM

    return SwitchyardLM(str(model), **KEYS, per_device_batch_size=2)


class Request:
    def __init__(self, *args):
        self.args = args


def test_greedy_chats_and_cache(lm):
    cached = []
    lm.cache_hook.add_partial = lambda *entry: cached.append(entry)
    prompt = lm.apply_chat_template([{"role": "user", "content": "Hi"}])
    assert prompt == "<|begin|>user: Hi<|begin|>assistant:"
    assert lm.tok_encode(prompt).count(lm.tokenizer.begin_token) == 2
    unfinished = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "So"}]
    assert lm.apply_chat_template(unfinished, add_generation_prompt=False).endswith("So")
    assert lm.chat_template(True) == TEMPLATE and "/" not in lm.tokenizer_name
    options = {"until": ["\n"], "max_gen_toks": 6}
    made = lm.generate_until([Request(prompt, options), Request("Hi", options), Request("", options)])
    alone = lm.engine.generate(lm.tok_encode("Hi"), max_tokens=6, stop=["\n"])
    assert made[1] == alone.text and [entry[:2] for entry in cached if entry[2] == made[1]]
    ids = lm.tok_encode("Hi")
    for tokens, is_greedy in ((alone.tokens, True), ([5, 6, 7], False)):
        [(total, found)] = lm._loglikelihood_tokens([(("Hi", "x"), ids, tokens)], disable_tqdm=True)
        assert found == is_greedy and total == pytest.approx(lm.engine.score([tokens], contexts=[ids])[0].sum)
    assert cached[-1][:2] == ("loglikelihood", ("Hi", "x"))
    drawn = {"temperature": 1.0, "do_sample": True, "max_gen_toks": 12, "until": []}
    texts = lm.generate_until([Request("Hi", drawn)] * 4, disable_tqdm=True)
    assert len(set(texts)) > 1 and texts == lm.generate_until([Request("Hi", drawn)] * 4, disable_tqdm=True)
    assert lm.loglikelihood_rolling([Request("")], disable_tqdm=True) == [0]


def test_begin_tokens(model):
    from switchyard.lm_eval import SwitchyardLM

    lm = SwitchyardLM(str(model), add_bos=True, max_length=32, batch_size="auto")
    begin = lm.tokenizer.begin_token
    assert lm.max_length == 32 and lm.prefix_token_id == begin
    assert (
        lm.tok_encode("a")[0] == begin == lm.tok_encode("<|begin|>a")[0]
        and begin not in lm.tok_encode("<|begin|>a")[1:]
    )
    assert begin not in lm.tok_encode("a", add_special_tokens=False)


def test_wrong_arguments(lm, model):
    from switchyard.lm_eval import SwitchyardLM

    for call, words in [
        (lambda: SwitchyardLM(str(MODEL)), "tokenizer_path: expected the model's tokenizer, got none"),
        (lambda: SwitchyardLM(str(model), max_batch_size=4), "max_batch_size"),
        (lambda: SwitchyardLM(str(model), max_length=3, max_target_length=4), "expected max_target_length=4"),
        (lambda: SwitchyardLM(str(model), truncate=True), "unknown key truncate"),
        (lambda: lm.chat_template("tool_use"), "expected no name"),
        (lambda: lm.generate_until([Request("a", {"max_gen_toks": CAPACITY})]), "expected less than max_length"),
        (lambda: lm.loglikelihood([Request("a", "b" * 400)]), "a continuation below max_length"),
    ]:
        with pytest.raises(switchyard.UsageError, match=words):
            call()


def run_line(*words):
    command = [sys.executable, "-m", "switchyard.lm_eval", "--model", "switchyard", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)


def test_command_line(model, tmp_path):
    tasks = ["--tasks", "sy_choice", "--include_path", ROOT / "python/tests/lm_eval", "--output_path", tmp_path]
    done = run_line("--model_args", f"model={model},max_length={CAPACITY},dtype=float32", "--batch_size", 4, *tasks)
    assert done.returncode == 0 and "sy_choice" in done.stdout, done.stderr
    assert json.loads(next(tmp_path.rglob("results*.json")).read_text())["results"]["sy_choice"]["acc,none"] <= 1
    done = run_line("--model_args", f"model={MODEL}", *tasks)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("switchyard: [tokenizer] tokenizer_path: expected"), done.stderr

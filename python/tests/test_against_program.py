"""Numbers are those of the program's commands, bit for bit."""

import json

import numpy as np

from conftest import MODEL, open_tiny, read_safetensors, run_program, words

PERIOD = "abcdefgh"  # a text of it has equal rows, in any order


def test_logits_are_those_of_verify(mesh, tmp_path):
    run_program("verify", MODEL, *words({**mesh, "ranks": mesh.get("ranks", 1)}), "--json", tmp_path / "report.json")
    report = json.loads((tmp_path / "report.json").read_text())
    [told] = [tensor for tensor in report["cases"][0]["tensors"] if tensor["name"] == "logits"]
    golden = read_safetensors(MODEL / "io.safetensors")
    with open_tiny(**mesh) as engine:
        logits = engine.forward(golden["input_ids"])
        assert logits.shape == (2, 32, 256) and logits.dtype == np.float32
        assert np.abs(logits.astype(np.float64) - golden["logits"]).max() == told["max_abs"]
        last = engine.forward(golden["input_ids"], last=True)
        assert last.shape == (2, 1, 256)
        np.testing.assert_allclose(last[:, 0], logits[:, -1], rtol=1e-5, atol=1e-5)


def test_texts_and_log_probabilities_are_those_of_generate(mesh, tmp_path):
    for sampling in (
        {"max_tokens": 40},
        {"max_tokens": 40, "temperature": 0.9, "top_p": 0.8, "seed": 5},
        {"max_tokens": 40, "temperature": 0.9, "top_k": 9, "min_p": 0.1, "repetition_penalty": 1.2},
    ):
        run_program(
            "generate",
            MODEL,
            "tokenizer_type=byte",
            "prompt=ab",
            "return_log_prob=true",
            *words({**mesh, **sampling}),
            "--json",
            tmp_path / "texts.json",
        )
        [told] = json.loads((tmp_path / "texts.json").read_text())["results"]
        with open_tiny(**mesh) as engine:
            made = engine.generate("ab", logprobs=True, **sampling)
            assert made.tokens == told["tokens"]
            assert made.log_probs == told["log_probs"]
            assert made.text == told["text"]
            streamed = list(engine.stream("ab", logprobs=True, **sampling))
            assert [token.id for token in streamed] == told["tokens"]
            assert [token.logprob for token in streamed] == told["log_probs"]
            assert "".join(token.text for token in streamed) == told["text"]


def test_training_steps_are_those_of_train(mesh, tmp_path):
    keys = {
        **mesh,
        "max_target_length": 16,
        "per_device_batch_size": 4 // mesh.get("ranks", 1),
        "steps": 4,
        "learning_rate": 0.01,
        "warmup_steps_fraction": 0,
    }
    text = tmp_path / "text.txt"
    text.write_text(PERIOD * 500)
    run_program(
        "train",
        MODEL,
        "tokenizer_type=byte",
        f"data_path={text}",
        "add_bos=false",
        "add_eos=false",
        "run_name=run",
        f"base_output_directory={tmp_path}",
        *words(keys),
    )
    told = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    told = [line for line in told if "learning/loss" in line]
    rows = np.tile(np.frombuffer((PERIOD * 3).encode(), np.uint8).astype(np.int32), (4, 1))
    with open_tiny(**keys) as engine:
        steps = [engine.train_step({"tokens": rows[:, :16], "targets": rows[:, 1:17]}) for _ in range(4)]
    assert [step.loss for step in steps] == [line["learning/loss"] for line in told]
    assert [step.gradient_norm for step in steps] == [line["learning/raw_grad_norm"] for line in told]
    assert [step.learning_rate for step in steps] == [line["learning/current_learning_rate"] for line in told]
    assert steps[3].loss < steps[0].loss / 2
    assert [step.step for step in steps] == [0, 1, 2, 3] and steps[0].targets == 64 and steps[0].skipped == ""


def test_saved_and_exported_weights_open_again(tmp_path):
    with open_tiny(per_device_batch_size=1, learning_rate=0.01, warmup_steps_fraction=0, steps=2) as engine:
        engine.train_step([[1, 2, 3, 4]])
        engine.save(tmp_path / "saved")
        engine.export(tmp_path / "exported")
        logits = engine.forward([[1, 2, 3]])
    for folder in ("saved", "exported"):
        with open_tiny(load_parameters_path=tmp_path / folder) as engine:
            assert (engine.forward([[1, 2, 3]]) == logits).all()

"""Losses, halves of steps, gradients, weights and scores, against the engine's other calls and a loop in NumPy."""

import json
import signal

import numpy as np
import pytest
from conftest import MODEL, ROOT, open_tiny, run_program, run_script, words

import switchyard

ROWS = (np.arange(4 * 16).reshape(4, 16) * 7 % 251).astype(np.int32)


@pytest.fixture
def trained(mesh):
    with open_tiny(per_device_batch_size=4 // mesh.get("ranks", 1), learning_rate=0.01, steps=20, **mesh) as opened:
        yield opened


def log_probs_of(logits, rows):
    logits = logits.astype(np.float64)
    logits -= logits.max(-1, keepdims=True)
    all_of = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return np.take_along_axis(all_of[:, :-1], rows[:, 1:, None].astype(np.int64), 2)[..., 0]


def test_two_halves_are_a_step(mesh):
    keys = dict(per_device_batch_size=4 // mesh.get("ranks", 1), learning_rate=0.01, steps=20, **mesh)
    with open_tiny(**keys) as whole, open_tiny(**keys) as halves:
        for _ in range(2):
            step = whole.train_step(ROWS)
            loss = halves.forward_backward(ROWS)
            assert loss.asdict() == {name: getattr(step, name) for name in loss.__slots__}
            assert halves.optimizer_step() == step
        for name, parameter in whole.parameters.items():
            assert np.array_equal(parameter.numpy(), halves.parameters[name].numpy()), name


def test_gradients_are_the_slope_of_the_loss(trained):
    weights = np.linspace(-1, 1, ROWS.size).reshape(ROWS.shape).astype(np.float32)
    batch = {"tokens": ROWS, "weights": weights}
    trained.forward_backward(batch)
    gradients = trained.gradients()
    assert set(gradients) <= set(trained.parameters)
    gradient = gradients["final_norm"]
    assert gradient.shape == trained.parameters["final_norm"].shape and np.abs(gradient).max() > 1e-4
    before, losses = trained.parameters["final_norm"].numpy(), []
    direction = gradient / np.linalg.norm(gradient)
    for at in (-0.02, 0.02):
        trained.parameters["final_norm"].assign(before + at * direction)
        losses.append(trained.loss(batch).cross_entropy)
    slope = (losses[1] - losses[0]) / 0.04
    assert abs(slope - np.linalg.norm(gradient)) < 1e-3 * np.linalg.norm(gradient)
    with pytest.raises(KeyError, match="final_norm"):
        gradients["final_nrm"]


def test_gradients_add_up_and_drop(trained):
    trained.forward_backward(ROWS)
    once = trained.gradients()["embedding"]
    trained.forward_backward(ROWS)
    assert np.allclose(trained.gradients()["embedding"], 2 * once, atol=1e-6)
    with pytest.raises(switchyard.UsageError, match="wait for optimizer_step"):
        trained.train_step(ROWS)
    trained.drop_gradients()
    with pytest.raises(switchyard.UsageError, match="expected a forward_backward"):
        trained.optimizer_step()
    assert trained.train_step(ROWS).step == 0
    trained.forward_backward(ROWS[:2])
    assert trained.optimizer_step(learning_rate=0.5).learning_rate == 0.5


def test_scores_are_those_of_the_logits(trained):
    expected = log_probs_of(trained.forward(ROWS), ROWS)
    found = trained.token_log_probs(ROWS)
    assert found.shape == ROWS.shape and not found[:, -1].any()
    assert np.abs(found[:, :-1] - expected).max() < 2e-5
    loss = trained.loss(ROWS)
    assert loss.targets == 60 and abs(loss.cross_entropy + expected.mean()) < 2e-5
    scores = trained.score([list(row) for row in ROWS])
    for score, row, ids in zip(scores, expected, ROWS):
        assert np.abs(np.array(score.log_probs) - row).max() < 2e-5 and score.tokens == ids[1:].tolist()
        assert abs(score.sum - row.sum()) < 2e-4
    behind = trained.score([ROWS[0, 10:]], contexts=[ROWS[0, :10]])[0]
    assert behind.tokens == ROWS[0, 10:].tolist() and np.allclose(behind.log_probs, scores[0].log_probs[9:], atol=2e-5)


def test_greedy_texts_score_as_greedy(engine):
    made = engine.generate([5, 6, 7], max_tokens=6, ends_by_model=False, logprobs=True)
    score = engine.score([made.tokens], contexts=[[5, 6, 7]])[0]
    assert score.is_greedy and np.abs(np.array(score.log_probs) - made.log_probs).max() < 1e-4
    assert not engine.score([[1, 2, 3]])[0].is_greedy
    text = engine.score(["lo wo"], contexts=["hel"])[0]
    assert text.tokens == engine.encode("lo wo")


def test_sampler_and_trainer_agree(trained):
    made = trained.generate([5, 6, 7], max_tokens=8, temperature=1.0, seed=3, ends_by_model=False, logprobs=True)
    row = np.array([[5, 6, 7, *made.tokens]] * 2)
    assert np.abs(trained.token_log_probs(row)[0, 2:-1] - made.log_probs).max() < 1e-4


def test_documents_and_padding(engine):
    batch = switchyard.Batch.of([[1, 2, 3, 4, 5], [6, 7, 8]], multiple=4)
    assert batch.tokens.shape == (2, 8)
    found = engine.token_log_probs(batch)
    assert not found[0, 4:].any() and not found[1, 2:].any()
    for row, ids in zip(found, ([1, 2, 3, 4, 5], [6, 7, 8])):
        assert np.abs(row[: len(ids) - 1] - engine.score([ids])[0].log_probs).max() < 2e-5
    texts = switchyard.Batch.of(["ab", [97, 98, 99]], engine)
    assert texts.tokens[0, :2].tolist() == engine.encode("ab") and texts.tokens.shape == (2, 3)
    with pytest.raises(switchyard.UsageError, match="a tokenizer beside texts"):
        switchyard.Batch.of(["ab"])
    packed = engine.token_log_probs({"tokens": [[1, 2, 3, 4, 5, 6, 7, 8]], "segments": [[1] * 5 + [2] * 3]})
    assert np.abs(packed[0, :4] - found[0, :4]).max() < 2e-5 and np.abs(packed[0, 5:7] - found[1, :2]).max() < 2e-5


def test_state_goes_around(trained, mesh, tmp_path):
    with open_tiny(init_weights_seed=5, per_device_batch_size=4 // mesh.get("ranks", 1), **mesh) as other:
        for _ in range(2):
            trained.train_step(ROWS)
        logits = trained.forward(ROWS)
        assert not np.array_equal(other.forward(ROWS), logits)
        text = other.generate([1, 2], max_tokens=5).tokens
        other.load_state(trained.state())
        assert np.array_equal(other.forward(ROWS), logits)
        assert other.generate([1, 2], max_tokens=5).tokens == trained.generate([1, 2], max_tokens=5).tokens != text
        trained.train_step(ROWS)
        trained.save(tmp_path / "saved")
        view = other.parameters["layers.0.moe.gate"].shards[0]
        other.load(tmp_path / "saved")
        assert np.array_equal(other.forward(ROWS), trained.forward(ROWS))
        assert np.array_equal(np.asarray(view), np.asarray(trained.parameters["layers.0.moe.gate"].shards[0]))


@pytest.mark.parametrize(
    "batch, words",
    [
        ({"tokens": ROWS, "weight": ROWS}, "batch: expected tokens, targets, segments, positions, weights"),
        ({"tokens": ROWS, "weights": ROWS[:2]}, r"weights: expected the shape \[4, 16\], got \[2, 16\]"),
        ({"tokens": ROWS, "weights": np.full(ROWS.shape, np.nan)}, "weight nan: expected a number"),
        ({"tokens": ROWS, "segments": -ROWS}, "expected 0 or more"),
        ({"tokens": ROWS, "positions": ROWS[:, :3]}, r"positions: expected the shape of tokens"),
        ({"tokens": ROWS, "targets": ROWS + 10**6}, "is outside the vocabulary"),
    ],
)
def test_wrong_batches(engine, batch, words):
    for call in (engine.forward_backward, engine.token_log_probs, engine.loss):
        with pytest.raises(switchyard.UsageError, match=words):
            call(batch)


def test_wrong_arguments(engine):
    gate = engine.parameters["layers.0.moe.gate"]
    with pytest.raises(switchyard.UsageError, match=r"layers.0.moe.gate: expected the shape"):
        gate.assign(np.zeros(3, np.float32))
    with pytest.raises(TypeError, match="expected numbers"):
        gate.assign(np.full(gate.shape, "x"))
    with pytest.raises(KeyError):
        engine.load_state({"no": np.zeros(3)})
    with pytest.raises(switchyard.UsageError, match="contexts: expected one for each of 1 texts"):
        engine.score(["ab"], contexts=[])
    with pytest.raises(switchyard.UsageError, match="a text of 1 tokens"):
        engine.score([[3]])
    with pytest.raises(switchyard.UsageError, match="learning_rate"):
        engine.forward_backward(ROWS)
        engine.optimizer_step(learning_rate=-1)
    with pytest.raises(switchyard.UsageError, match="rows: expected at least one"):
        switchyard.Batch.of([])
    with pytest.raises(TypeError, match="temprature: expected one of"):
        engine.generate("a", temprature=1)


def keys_of_run(mesh, folder, **more):
    return dict(
        per_device_batch_size=4 // mesh.get("ranks", 1),
        max_target_length=16,
        base_output_directory=folder,
        run_name="run",
        enable_checkpointing=True,
        enable_tensorboard=False,
        add_bos=False,
        add_eos=False,
        steps=4,
        **mesh,
        **more,
    )


def test_a_run_is_that_of_the_program(mesh, tmp_path):
    keys = keys_of_run(mesh, tmp_path / "python")
    seen, lines = [], []
    with open_tiny(**keys) as engine:
        run = engine.train(data=ROOT / "docs/tour.md", callback=[seen.append, lambda metrics: None], line=lines.append)
        assert (run.steps, run.stopped) == (4, False) and run.sample and any("time:" in line for line in run.lines)
        assert any("batch 4 x 16 tokens" in line for line in lines)
        weights = engine.state()
    keys["base_output_directory"] = tmp_path / "program"
    run_program("train", MODEL, "tokenizer_type=byte", f"data_path={ROOT / 'docs/tour.md'}", *words(keys))
    told = [json.loads(line) for line in (tmp_path / "program/run/metrics.jsonl").read_text().splitlines()]
    assert [step["learning/loss"] for step in seen] == [step["learning/loss"] for step in told]
    with open_tiny(load_parameters_path=tmp_path / "program/run/checkpoints/4") as trained:
        for name, array in trained.state().items():
            assert np.array_equal(array, weights[name]), name


def test_a_run_of_rows_ends_where_it_is_told_to(mesh, tmp_path):
    rows = [{"text": f"row {number} of some text that is long enough to be cut. " * 4} for number in range(80)]
    with open_tiny(**keys_of_run(mesh, tmp_path)) as engine:
        run = engine.train(data=iter(rows), steps=6, callback=lambda metrics: metrics["step"] < 1)
        assert (run.steps, run.stopped) == (2, True)
        assert (tmp_path / "run/checkpoints/2").is_dir()
        with pytest.raises(ZeroDivisionError):
            engine.train(data=rows, steps=6, callback=lambda metrics: 1 // 0)
        assert (tmp_path / "run/checkpoints/3").is_dir()
        assert engine.train(data=rows, steps=6).steps == 6
        with pytest.raises(TypeError, match="data: row 0: expected a text or a mapping, got int"):
            engine.train(data=[3])
        with pytest.raises(switchyard.UsageError, match="no such file"):
            engine.train(data=tmp_path / "nothing")


def test_ctrl_c_ends_a_run_behind_its_step(tmp_path):
    script = f"""
engine = open_tiny(per_device_batch_size=4, max_target_length=16, base_output_directory={str(tmp_path)!r},
                   run_name="run", enable_checkpointing=True, checkpoint_period=100000, steps=100000,
                   add_bos=False, add_eos=False)
def told(metrics):
    if metrics["step"] == 3: print("now", flush=True)
try:
    engine.train(data="docs/tour.md", callback=told)
except KeyboardInterrupt:
    steps = [int(name) for name in os.listdir({str(tmp_path / "run/checkpoints")!r}) if name.isdigit()]
    assert max(steps) >= 4, steps
    print("stopped", len(engine.generate("ab", max_tokens=3).tokens))
"""
    status, out, err = run_script(script, signal_at=("now", lambda process: process.send_signal(signal.SIGINT)))
    assert (status, out.strip(), err) == (0, "stopped 3", "")


@pytest.mark.parametrize("packed", ["int8", "int4"])
def test_packed_weights_are_scored_and_not_trained(packed):
    with open_tiny(weight_format=packed) as engine:
        found = engine.token_log_probs(ROWS)
        assert np.abs(found[:, :-1] - log_probs_of(engine.forward(ROWS), ROWS)).max() < 2e-5
        with pytest.raises(switchyard.UsageError, match=f"the weights are packed \\({packed}\\)"):
            engine.forward_backward(ROWS)

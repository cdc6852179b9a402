"""safetensors, Weights & Biases, TensorBoard, tqdm, pandas and matplotlib, each against the real package."""

import json
import re
import sys
import time

import numpy as np
import pytest
from conftest import ROOT, open_tiny

import switchyard
from switchyard import callbacks, frames

ROWS = [{"text": f"row {number} of a text that is long enough to be cut into rows. " * 2} for number in range(40)]
STEPS = 3


def trained(folder, callback=None, **keys):
    keys |= dict(base_output_directory=folder, run_name="run", add_bos=False, add_eos=False, per_device_batch_size=2)
    with open_tiny(steps=STEPS, max_target_length=32, enable_checkpointing=False, **keys) as engine:
        return engine.train(data=ROWS, callback=callback)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def lines(run):
    return [json.loads(line) for line in open(run.metrics_file)]


def test_safetensors(mesh, tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    with open_tiny(**mesh) as engine, open_tiny(init_weights_seed=5, load_parameters_path="", **mesh) as other:
        safetensors.save_file(engine.state(), tmp_path / "state.safetensors")
        engine.save(tmp_path / "saved")
        state = safetensors.load_file(tmp_path / "state.safetensors")
        saved = {}
        for file in (tmp_path / "saved").glob("*.safetensors"):
            saved |= safetensors.load_file(file)
        assert set(state) == set(engine.parameters)
        for name, array in state.items():
            assert np.array_equal(array, engine.parameters[name].numpy())
            prefix, _, last = name.rpartition(".")
            if name in saved:
                assert np.array_equal(array, saved[name]), name
            else:  # a checkpoint has each expert's weights apart
                experts = [saved[f"{prefix}.experts.{number}.{last}"] for number in range(8)]
                assert np.array_equal(array, experts), name
        tokens = [[1, 2, 3]]
        other.parameters["embedding"].assign(np.zeros(other.parameters["embedding"].shape, np.float32))
        assert not np.array_equal(other.forward(tokens), engine.forward(tokens))
        other.load_state(state)
        assert np.array_equal(other.forward(tokens), engine.forward(tokens))


def logged_by_wandb(file):
    """The records of an offline run's file, in blocks of 32 KiB as LevelDB's log has them."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, record = file.read_bytes(), 7, b""
    while at < len(data):
        if 32768 - at % 32768 < 7:  # no header fits: zeros
            at += 32768 - at % 32768
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        if at + 7 + size > len(data):  # being written
            return
        record += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            found, record = Record.FromString(record), b""
            yield found.WhichOneof("record_type"), found


def test_wandb_offline(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    log = wandb.init(mode="offline", dir=tmp_path, project="switchyard")
    seen = []
    trained(tmp_path / "run", [callbacks.wandb(log), seen.append])
    log.finish()
    (file,) = tmp_path.rglob("*.wandb")
    end = time.monotonic() + 60  # another process writes the file
    while (records := list(logged_by_wandb(file))) == [] or records[-1][0] != "exit":
        assert time.monotonic() < end, [kind for kind, _ in records]
        time.sleep(0.1)
    logged = [
        {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
        for kind, record in records
        if kind == "history"
    ]
    assert len(logged) == len(seen) == STEPS
    for step, metrics in zip(logged, seen):
        assert {name: step[name] for name in metrics} == metrics and step["_step"] == metrics["step"]
    with pytest.raises(TypeError, match="run: expected what wandb.init"):
        callbacks.wandb(None)


def test_tensorboard_reads_the_runs_events(run, lines):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = events.EventAccumulator(run.folder + "/tensorboard", size_guidance={"scalars": 0})
    found.Reload()
    names = set(lines[0]) - {"step"}
    assert names == set(found.Tags()["scalars"]) and names
    for name in names:
        for scalar, line in zip(found.Scalars(name), lines, strict=True):
            assert (scalar.step, scalar.value) == (line["step"], float(np.float32(line[name])))


def test_progress(tmp_path, capsys, monkeypatch):
    pytest.importorskip("tqdm")
    trained(tmp_path / "bar", callbacks.progress(STEPS))
    shown = capsys.readouterr()
    assert f"{STEPS}/{STEPS}" in shown.err and "loss=" in shown.err and shown.out == ""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    trained(tmp_path / "line", callbacks.progress(STEPS))
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.count("\n") == 1
    assert [part.split(":")[0] for part in shown.err.strip().split("\r") if part] == [
        f"step {step + 1} of {STEPS}" for step in range(STEPS)
    ]


def test_frames(run, lines):
    pandas = pytest.importorskip("pandas")
    metrics = run.metrics()
    assert isinstance(metrics, pandas.DataFrame) and list(metrics.index) == [line["step"] for line in lines]
    for line in lines:
        for name, value in line.items():
            assert name == "step" or metrics.loc[line["step"], name] == value
    loads = run.routing_loads()
    assert loads.shape == (STEPS, 2 * 8) and loads[1][7].iloc[-1] == lines[-1]["moe/layer_1/rows/expert_7"]
    over_mean = loads[0].max(axis=1) / loads[0].mean(axis=1)
    assert np.allclose(over_mean, metrics["moe/layer_0/max_over_mean_load"])
    assert frames.metrics(run.folder).equals(metrics)


def test_metrics_with_gaps(tmp_path):
    pytest.importorskip("pandas")
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step":4,"learning/loss":null}\n{"step":5,"learning/loss":2,"eval/loss":3}\n')
    frame = frames.metrics(file)
    assert np.isnan(frame.loc[4, "learning/loss"]) and np.isnan(frame.loc[4, "eval/loss"])
    assert frame.loc[5].tolist() == [2, 3]
    with pytest.raises(switchyard.UsageError, match="a dense model's run"):
        frames.routing_loads(file)
    file.write_text("")
    with pytest.raises(switchyard.UsageError, match="found none"):
        frames.metrics(tmp_path)
    with pytest.raises(switchyard.UsageError, match="expected a run's folder"):
        frames.metrics(tmp_path / "nothing")


def test_a_metrics_file_elsewhere(tmp_path):
    pytest.importorskip("pandas")
    run = trained(tmp_path, metrics_file=tmp_path / "own.jsonl")
    assert run.metrics_file == str(tmp_path / "own.jsonl") and len(run.metrics()) == STEPS


def test_plot(run, tmp_path, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")
    pytest.importorskip("pandas")
    pyplot = pytest.importorskip("matplotlib.pyplot")
    axes = run.plot_load()
    loads = run.routing_loads()
    assert len(axes) == 2
    for layer, axis in enumerate(axes):
        shown = axis.images[0].get_array()
        assert np.allclose(shown.T, loads[layer].div(loads[layer].mean(axis=1), axis=0))
    axes[0].figure.savefig(tmp_path / "load.png")
    assert (tmp_path / "load.png").stat().st_size > 1000
    pyplot.close("all")
    with pytest.raises(switchyard.UsageError, match=r"layers=\[7\]: expected some of \[0, 1\]"):
        run.plot_load([7])
    pyplot.close("all")


def test_example(tmp_path, monkeypatch):
    for name in ("datasets", "safetensors", "wandb", "tqdm", "pandas", "matplotlib"):
        pytest.importorskip(name)
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.setenv("WANDB_SILENT", "true")
    _, block = re.findall(r"```py\n(.*?)```", (ROOT / "docs/python.md").read_text(), re.DOTALL)
    names = {}
    exec(compile(block, "docs/python.md", "exec"), names)
    names["log"].finish()
    assert (tmp_path / "load.png").exists()


@pytest.mark.parametrize(
    "call, module, name",
    [
        (lambda run: run.metrics(), "pandas", "pandas"),
        (lambda run: run.plot_load(), "matplotlib", "matplotlib"),
        (lambda run: __import__("switchyard.lm_eval"), "lm_eval", "lm-eval"),
    ],
)
def test_missing_packages(run, monkeypatch, call, module, name):
    for loaded in list(sys.modules):
        if loaded.split(".")[0] == module or loaded == "switchyard.lm_eval":
            monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=f"needs the package {name}: pip install {name}$") as raised:
        call(run)
    assert "\n" not in str(raised.value)

"""Commands as calls: the same JSON and text as the program's."""

import copy
import json
import pickle
import subprocess

import pytest

import switchyard
from conftest import MODEL, PROGRAM, ROOT

SHAPE = {"model_name": "deepseek3-tiny", "ranks": 2, "ici_expert_parallelism": 2, "per_device_batch_size": 1}


def of_program(tmp_path, *words, status=0):
    """The JSON and the text of a command of the program."""
    file = tmp_path / "of_program.json"
    done = subprocess.run([PROGRAM, *map(str, words), "--json", file], capture_output=True, cwd=ROOT, timeout=120)
    assert done.returncode == status, done.stderr.decode(errors="replace")
    return file.read_text(), done.stdout.decode()


def check_equal(report, expected):
    written, text = expected
    assert json.loads(report.json()) == json.loads(written)
    assert report.asdict() == json.loads(written)
    assert "\n".join([*report.notes, str(report)]).strip().endswith(text.strip().splitlines()[-1])
    assert str(report) in text
    assert report.version and f"version={report.version!r}" in repr(report)


def test_plan(tmp_path):
    words = [f"{key}={value}" for key, value in SHAPE.items()]
    check_equal(switchyard.plan(**SHAPE), of_program(tmp_path, "plan", *words))
    made = switchyard.plan(generate=True, topology="h100", **SHAPE)
    check_equal(made, of_program(tmp_path, "plan", "--generate", "topology=h100", *words))
    two = ("ici_expert_parallelism=2", "ici_expert_parallelism=1 ici_fsdp_parallelism=2")
    meshes = switchyard.plan(meshes=two, **SHAPE)
    check_equal(meshes, of_program(tmp_path, "plan", "--mesh", two[0], "--mesh", two[1], *words))
    assert [mesh.keys for mesh in meshes.meshes] == list(two)
    with pytest.raises(switchyard.UsageError, match="expected one of them"):
        switchyard.plan(generate=True, search=True, **SHAPE)
    with pytest.raises(switchyard.UsageError) as unknown:
        switchyard.plan(**SHAPE, rnaks=2)
    assert (unknown.value.key, unknown.value.expected) == ("rnaks", "ranks")


def test_explain(tmp_path):
    words = [f"{key}={value}" for key, value in SHAPE.items()]
    told = switchyard.explain(filter="moe", **SHAPE)
    check_equal(told, of_program(tmp_path, "explain", "--filter", "moe", *words))
    assert all("moe" in row.name for row in told.parameters) and told.parameters[0].axes is not None
    assert "items]" in repr(told)


def test_inspect(tmp_path):
    seen = switchyard.inspect(MODEL, statistics=True)
    check_equal(seen, of_program(tmp_path, "inspect", MODEL, "--statistics"))
    other = ROOT / "tests/golden/hf/deepseek3-tiny"
    differing = switchyard.inspect(MODEL, other)
    assert differing.status == 3
    check_equal(differing, of_program(tmp_path, "inspect", MODEL, other, status=3))
    with pytest.raises(switchyard.UsageError, match="no such file"):
        switchyard.inspect(tmp_path / "absent")


def test_convert_and_evaluate(tmp_path):
    made = switchyard.convert(MODEL, tmp_path / "ours", dtype="bfloat16", verify=True)
    assert made.status == 0 and made.verified.holds and made.tensors > 0 and made.form == "switchyard"
    with pytest.raises(switchyard.UsageError, match="exists"):
        switchyard.convert(MODEL, tmp_path / "ours")
    text = tmp_path / "text.txt"
    text.write_text("A switchyard sorts wagons. " * 8)
    keys = {"tokenizer_type": "byte"}
    scored = switchyard.evaluate(MODEL, text, window=16, against=tmp_path / "ours", **keys)
    words = [MODEL, f"data_path={text}", "--window", 16, "--against", tmp_path / "ours", "tokenizer_type=byte"]
    written, printed = of_program(tmp_path, "eval", *words)
    theirs = json.loads(written)
    ours = scored.asdict()
    assert ours.pop("seconds") > 0 and theirs.pop("seconds") > 0
    assert ours == theirs and str(scored) == printed
    assert scored.against.mean_kl > 0
    with pytest.raises(switchyard.UsageError, match="--window: expected"):
        switchyard.evaluate(MODEL, text, window=0, **keys)


def test_doctor():
    found = switchyard.doctor(quick=True)
    assert found.status == 0 and {"cpu", "gpu", "mpi"} <= {part.name for part in found.parts}
    lacking = switchyard.doctor(quick=True, require=["cpu", "gpu"])
    gpu = next(part for part in lacking.parts if part.name == "gpu")
    assert lacking.status == (0 if gpu.state == "ok" else 1) and len(lacking.notes) == lacking.status
    with pytest.raises(switchyard.UsageError, match="expected cpu, gpu"):
        switchyard.doctor(require=["gpus"])


def test_records_are_values():
    report = switchyard.doctor(quick=True)
    for other in (copy.copy(report), copy.deepcopy(report), pickle.loads(pickle.dumps(report))):
        assert other == report and str(other) == str(report) and other.notes == report.notes
    assert report["parts"][0]["name"] == report.parts[0].name == "version"
    assert "parts" in report and list(report) == ["version", "parts"] and "parts" in dir(report)
    with pytest.raises(AttributeError, match="expected one of version, parts"):
        report.part
    with pytest.raises(AttributeError, match="does not change"):
        report.version = "1"

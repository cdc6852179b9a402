"""What the tests share: a tiny model, the program whose numbers are compared, and scripts in processes of their own."""

import json
import os
import pathlib
import struct
import subprocess
import sys

import numpy as np
import pytest

import switchyard

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "tests/golden/hf/qwen3moe-tiny"
PROGRAM = pathlib.Path(os.environ.get("SWITCHYARD_PROGRAM", ROOT / "build/release/switchyard"))
MESHES = {
    "1 rank": {},
    "2 ranks": {"ranks": 2, "ici_expert_parallelism": 2},
    "4 ranks": {"ranks": 4, "ici_expert_parallelism": 2, "ici_fsdp_parallelism": 2},
}


def open_tiny(**keys):
    return switchyard.Engine.open(MODEL, **{"tokenizer_type": "byte", **keys})


def run_program(*words):
    """Runs a command of the program, with keys as Engine.open takes them."""
    done = subprocess.run([PROGRAM, *map(str, words)], capture_output=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr.decode(errors="replace")


def words(keys):
    return [f"{key}={value}" for key, value in keys.items()]


def run_script(script, *, signal_at=None, seconds=60):
    """Runs Python lines in a process of their own; `signal_at`: (line that it prints, what to call then)."""
    before = (
        "import os, sys, threading, time\nimport switchyard\n"
        f"def open_tiny(**keys): return switchyard.Engine.open({str(MODEL)!r}, tokenizer_type='byte', **keys)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", before + script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    first = ""
    if signal_at is not None:
        line, act = signal_at
        first = process.stdout.readline()
        assert first.strip() == line, process.communicate(timeout=seconds)
        act(process)
    out, err = process.communicate(timeout=seconds)
    return process.returncode, out, err


def read_safetensors(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    types = {"F32": np.float32, "I32": np.int32}
    return {
        name: np.frombuffer(data[slice(*entry["data_offsets"])], types[entry["dtype"]]).reshape(entry["shape"])
        for name, entry in header.items()
        if name != "__metadata__"
    }


@pytest.fixture(params=MESHES.values(), ids=MESHES.keys())
def mesh(request):
    return request.param


@pytest.fixture
def engine():
    with open_tiny() as opened:
        yield opened

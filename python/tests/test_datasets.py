"""Rows of the package `datasets` as training data: the steps are those of a file of JSON lines with the same rows."""

import itertools
import json
import os

import numpy as np
import pytest
from conftest import ROOT, open_tiny

import switchyard

os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
datasets = pytest.importorskip("datasets")

TEXTS = [{"text": f"row {number} of a text that is long enough to be cut into rows. " * 2} for number in range(40)]
CHATS = [
    {"messages": [{"role": "user", "content": f"{n} and {n}?"}, {"role": "assistant", "content": f"{2 * n}, I say"}]}
    for n in range(40)
]
PAIRS = [{"prompt": f"{n} and {n} make ", "completion": f"{2 * n}", "source": None} for n in range(40)]
KINDS = {
    "text": (TEXTS, {}),
    "messages": (CHATS, {"use_sft": True, "dataset_type": "text"}),
    "pairs": (PAIRS, {"use_sft": True, "dataset_type": "text"}),
}


def steps_of(folder, data, *, stops_after=None, **keys):
    """The losses of a run of four steps, or of its first ones."""
    keys |= dict(base_output_directory=folder, run_name="run", enable_tensorboard=False, add_bos=False, add_eos=False)
    keys |= dict(per_device_batch_size=2, max_target_length=96, learning_rate=0.01, enable_checkpointing=True)
    seen = []

    def after_step(metrics):
        seen.append(metrics["learning/loss"])
        return stops_after is None or len(seen) < stops_after

    with open_tiny(steps=4, chat_template_path=ROOT / "tests/clients/chat_template.jinja", **keys) as engine:
        run = engine.train(data=data, callback=after_step)
        assert run.stopped == (stops_after is not None)
        return seen, {name: array.copy() for name, array in engine.state().items()}


@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_those_of_a_file(kind, tmp_path):
    rows, keys = KINDS[kind]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    wanted, weights = steps_of(tmp_path / "file", tmp_path / "rows.jsonl", **keys)
    assert len(set(wanted)) == 4
    whole = datasets.Dataset.from_list(rows)
    endless = datasets.IterableDataset.from_generator(lambda: (row for _ in itertools.count() for row in rows))
    for name, data in (("whole", whole), ("stream", itertools.islice(endless, len(rows)))):
        found, state = steps_of(tmp_path / name, data, **keys)
        assert found == wanted
        assert all(np.array_equal(state[name], weights[name]) for name in weights)
    # Two halves of a run.
    first, _ = steps_of(tmp_path / "halves", whole, stops_after=2, **keys)
    second, state = steps_of(tmp_path / "halves", whole, **keys)
    assert first + second == wanted
    assert all(np.array_equal(state[name], weights[name]) for name in weights)


def test_wrong_rows(tmp_path):
    with open_tiny(per_device_batch_size=2, base_output_directory=tmp_path, add_eos=False, add_bos=False) as engine:
        with pytest.raises(TypeError, match="data: expected a path or rows, got DatasetDict"):
            engine.train(data=datasets.DatasetDict(train=datasets.Dataset.from_list(TEXTS)))
        with pytest.raises(TypeError, match="data: row 0: expected what JSON holds"):
            engine.train(data=datasets.Dataset.from_list([{"text": "a", "raw": b"bytes"}]))
        with pytest.raises(switchyard.UsageError, match="text"):
            engine.train(data=datasets.Dataset.from_list([{"txt": "no such column"}]))

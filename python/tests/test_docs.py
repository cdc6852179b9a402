"""docs/python.md and docstrings: their examples run as a reader would type them, and they name all there is."""

import doctest
import importlib
import inspect
import re

import numpy as np
import pytest
import switchyard
from conftest import ROOT, open_tiny

DOCS = (ROOT / "docs/python.md").read_text()
MODULES = ("_batch", "_engine", "_parameters", "_routing", "chat", "commands", "server", "tokenizer")


def test_examples_run(monkeypatch):
    monkeypatch.chdir(ROOT)
    blocks = re.findall(r"```python\n(.*?)```", DOCS, re.DOTALL)
    assert len(blocks) == 10
    names = {}
    for block in blocks:
        exec(compile(block, "docs/python.md", "exec"), names)


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_docstrings_run(name, monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    module = importlib.import_module(f"switchyard.{name}")
    keys = {"add_bos": False, "add_eos": False, "chat_template_path": "tests/golden/chat/templates/calls.jinja"}
    files = {"base_output_directory": tmp_path, "run_name": "run", "max_target_length": 256}
    runner = doctest.DocTestRunner()
    for example in doctest.DocTestFinder().find(module):
        with open_tiny(per_device_batch_size=4, learning_rate=0.01, steps=9, **keys, **files) as engine:
            example.globs.update(engine=engine, folder=tmp_path, np=np, Batch=switchyard.Batch)
            runner.run(example)
    assert runner.tries > 0 and runner.failures == 0


def members():
    """Every public name with what it is, members of classes included."""
    for name in switchyard.__all__:
        kind = getattr(switchyard, name)
        yield name, kind
        for base in reversed(kind.__mro__) if isinstance(kind, type) else ():
            if base.__module__.startswith("switchyard"):
                yield from ((f"{name}.{member}", value) for member, value in vars(base).items() if member[0] != "_")


def test_every_name_has_a_docstring_and_a_place_in_the_docs():
    found = dict(members())
    assert len(found) > 100
    fields = {name for name, value in found.items() if inspect.ismemberdescriptor(value)}
    assert [name for name in found.keys() - fields if not inspect.getdoc(found[name])] == []
    assert [name for name in found if not re.search(rf"\b{name.split('.')[-1]}\b", DOCS)] == []


def test_every_call_has_an_example():
    calls = {name: inspect.unwrap(getattr(value, "__func__", value)) for name, value in members()}
    calls = {name: value for name, value in calls.items() if inspect.isfunction(value)}
    assert len(calls) > 40
    without = {name.split(".")[-1] for name, value in calls.items() if ">>>" not in (inspect.getdoc(value) or "")}
    of_pandas = {"metrics", "routing_loads", "plot_load"}
    assert without == {"asdict", "json", "close", "stats"} | of_pandas  # the others are in their classes' examples

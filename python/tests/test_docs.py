"""The examples of docs/python.md, one after the other as a reader would type them."""

import re

from conftest import ROOT


def test_examples_run(monkeypatch):
    monkeypatch.chdir(ROOT)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/python.md").read_text(), re.DOTALL)
    assert len(blocks) >= 9
    names = {}
    for block in blocks:
        exec(compile(block, "docs/python.md", "exec"), names)

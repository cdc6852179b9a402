"""Writes python/switchyard/_keys.py, the types of all config keys, from what the program says of them.

python3 python/module/make_keys.py build/release/switchyard > python/switchyard/_keys.py
"""

import json
import pathlib
import subprocess
import sys
import tempfile

HEAD = '''"""The config keys with their types, for editors and type checkers. Made by python/module/make_keys.py.

Calls take every key at run time, as `switchyard config --list` has them; the engine says which value is wrong.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, TypedDict


class Keys(TypedDict, total=False):
    """Keys of a model, its mesh, its training and its data. `switchyard config --list WORD` says what they mean."""

'''
TYPES = {
    "boolean": "bool",
    "choice": "str",
    "integer": "int",
    "list of integers": "Sequence[int] | str",
    "list of numbers": "Sequence[float] | str",
    "list of text": "Sequence[str] | str",
    "nested lists": "Sequence[Any] | str",
    "number": "float",
    "text": "str | os.PathLike[str]",
}


def keys(program):
    """The module's text."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "keys.json")
        subprocess.run([program, "config", "--list", "--json", file], check=True)
        declared = json.loads(file.read_text())["keys"]
    optional = " or None"
    lines = [
        f"    {key['name']}: {TYPES[key['type'].removesuffix(optional)]}"
        + (" | None" if key["type"].endswith(optional) or key["status"] == "derived" else "")
        for key in declared
    ]
    return HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(keys(sys.argv[1]))

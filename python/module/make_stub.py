"""Writes python/switchyard/_native.pyi of the module that is imported: python3 python/module/make_stub.py > FILE"""

import re

import switchyard
from nanobind.stubgen import StubGen


def stub():
    made = StubGen(switchyard._native)
    made.put(switchyard._native)
    text = re.sub(r"Annotated\[NDArray(?:\[[\w.]+\])?, dict\([^)]*\)\]", "NDArray[Any]", made.get())
    return re.sub(r"^from typing import Annotated$", "from typing import Any", text, flags=re.M).strip() + "\n"


if __name__ == "__main__":
    print(stub(), end="")

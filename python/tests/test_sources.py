"""What the module may see, and what is said of it."""

import re

import pytest

import switchyard
from conftest import ROOT


def test_the_module_sees_the_public_headers_alone():
    for file in (ROOT / "python/module").glob("*.[ch]*"):
        for header in re.findall(r'#include "(.*)"', file.read_text()):
            assert (file.parent / header).exists() or (ROOT / "include" / header).exists(), f"{file.name} includes {header}"


def test_the_stub_is_that_of_the_module():
    stubgen = pytest.importorskip("nanobind.stubgen")
    stubs = stubgen.StubGen(switchyard._native)
    stubs.put(switchyard._native)
    told = (ROOT / "python/switchyard/_native.pyi").read_text()
    assert stubs.get().strip() == told.strip(), "python -m nanobind.stubgen -m switchyard._native writes it"

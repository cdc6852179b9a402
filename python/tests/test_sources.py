"""What the module may see, and what is said of it."""

import importlib.util
import re

import pytest

import switchyard
from conftest import ROOT


def test_the_module_sees_the_public_headers_alone():
    for file in (ROOT / "python/module").glob("*.[ch]*"):
        for header in re.findall(r'#include "(.*)"', file.read_text()):
            assert (file.parent / header).exists() or (
                ROOT / "include" / header
            ).exists(), f"{file.name} includes {header}"


def test_the_stub_is_that_of_the_module():
    pytest.importorskip("nanobind.stubgen")
    spec = importlib.util.spec_from_file_location("make_stub", ROOT / "python/module/make_stub.py")
    make_stub = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make_stub)
    told = (ROOT / "python/switchyard/_native.pyi").read_text()
    assert make_stub.stub() == told, "python3 python/module/make_stub.py writes it"

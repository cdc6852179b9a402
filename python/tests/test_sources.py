"""What the module may see, and what is said of it."""

import importlib.util
import re

import pytest

import switchyard
from conftest import PROGRAM, ROOT


def maker(name):
    """A script of python/module, which is no part of the package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"python/module/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_module_sees_the_public_headers_alone():
    for file in (ROOT / "python/module").glob("*.[ch]*"):
        for header in re.findall(r'#include "(.*)"', file.read_text()):
            assert (file.parent / header).exists() or (
                ROOT / "include" / header
            ).exists(), f"{file.name} includes {header}"


def test_the_stub_is_that_of_the_module():
    pytest.importorskip("nanobind.stubgen")
    told = (ROOT / "python/switchyard/_native.pyi").read_text()
    assert maker("make_stub").stub() == told, "python3 python/module/make_stub.py writes it"


def test_the_keys_are_those_of_the_program():
    told = (ROOT / "python/switchyard/_keys.py").read_text()
    assert maker("make_keys").keys(PROGRAM) == told, "python3 python/module/make_keys.py writes it"
    assert "    ici_expert_parallelism: int\n" in told

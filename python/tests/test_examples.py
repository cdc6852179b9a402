"""The scripts of examples/python run, and they and the package are typed."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

import switchyard
from conftest import ROOT

SCRIPTS = sorted((ROOT / "examples/python").glob("*.py"))
TORCH = importlib.util.find_spec("torch") is not None


def test_the_scripts_are_there():
    names = {script.stem for script in SCRIPTS}
    assert names == {"adapter", "gguf_against_original", "layer_in_torch", "rl_loop", "routing"}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_script_runs(script, tmp_path):
    if "torch" in script.stem:
        pytest.importorskip("torch")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout
    assert list(tmp_path.iterdir()) == []


def test_scripts_and_package_are_typed(tmp_path):
    pytest.importorskip("mypy")
    package = ROOT / "python/switchyard"
    assert (pathlib.Path(switchyard.__file__).parent / "py.typed").exists()
    files = [
        file for file in [*package.glob("*.py"), *package.glob("*.pyi"), *SCRIPTS] if TORCH or "torch" not in file.stem
    ]
    assert len(files) > 15
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import switchyard\nswitchyard.Engine.open('FOLDER', ranks='two', rnaks=2)\n")
    settings = ["--strict", "--python-version", "3.10", "--cache-dir", tmp_path / "cache", "--no-error-summary"]
    search = {**os.environ, "MYPYPATH": str(package.parent)}
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *settings, *files, wrong], capture_output=True, text=True, env=search, cwd=ROOT
    )
    told = [line for line in done.stdout.splitlines() if "error" in line]
    assert [line for line in told if "wrong.py" not in line] == [], done.stdout + done.stderr
    assert len(told) == 2 and '"rnaks"' in done.stdout and 'Argument "ranks"' in done.stdout

"""What an installation holds: the program with its configs, and refusals to be imported."""

import os
import pathlib
import subprocess
import sys

import pytest

import switchyard
from conftest import MODEL

PROGRAM = pathlib.Path(sys.executable).parent / "switchyard"
pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="the package is not installed: run_tests.py installs it")


def test_the_program_runs_with_the_configs_of_the_package(tmp_path):
    clean = {name: value for name, value in os.environ.items() if name != "SWITCHYARD_CONFIG_DIR"}
    words = ["plan", "model_name=only-here", "ranks=8", "topology=h100"]
    models = pathlib.Path(switchyard.__file__).parent / "share/switchyard/configs/models"
    (models / "only-here.yml").write_text((models / "mixtral-8x7b.yml").read_text())
    try:
        done = subprocess.run([PROGRAM, *words], capture_output=True, text=True, cwd=tmp_path, env=clean)
    finally:
        (models / "only-here.yml").unlink()
    assert done.returncode == 0, done.stderr
    assert "46.7 B parameters" in done.stdout


def test_the_program_passes_its_status_on():
    done = subprocess.run([PROGRAM, "generate", MODEL, "rnaks=2"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "ranks" in done.stderr


def test_a_processor_without_avx2_is_refused_in_one_line():
    switchyard._native.require_processor(avx2=True, fma=True)
    for answer in ({"avx2": False, "fma": True}, {"avx2": True, "fma": False}, {"avx2": False, "fma": False}):
        with pytest.raises(ImportError, match="needs a processor with AVX2 and FMA") as error:
            switchyard._native.require_processor(**answer)
        assert "\n" not in str(error.value)


def test_two_packages_of_the_same_files_are_refused(tmp_path):
    for name in ("switchyard", "switchyard_cuda"):
        info = tmp_path / f"{name}-0.1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 0.1.0\n")
    done = subprocess.run(
        [sys.executable, "-c", "import switchyard"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert "ImportError: switchyard and switchyard-cuda are both installed" in done.stderr.splitlines()[-1]

"""Installs the package into a virtual environment in the build folder, as `pip install` does, and runs its tests there.

    python3 python/tests/run_tests.py --build build/release [PYTEST'S ARGUMENTS]

Exit status 77 where Python's headers are missing or PyPI cannot be reached, else pytest's.
"""

import argparse
import hashlib
import os
import pathlib
import subprocess
import sys
import sysconfig
import venv

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SKIPPED = 77
INSTALL_SECONDS, SILENCE_SECONDS = 300, 15


def skip(why):
    print(f"skipped: {why}")
    sys.exit(SKIPPED)


def install(python, *words, **more):
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *words]
    return subprocess.run([str(word) for word in command], timeout=INSTALL_SECONDS, **more)


def environment(folder):
    """The Python of an environment with what the tests need; made once for a list of requirements."""
    requirements = HERE / "requirements.txt"
    wanted = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()
    stamp, python = folder / "installed", folder / "bin/python"
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    try:
        venv.create(folder, clear=True, with_pip=True)
    except (subprocess.SubprocessError, OSError, SystemExit):  # Debian 13's venv ends the program
        skip("this Python makes no virtual environments (Debian: python3-venv)")
    try:
        # Without an answer from PyPI it gives up within a minute.
        tries = ["--retries", "1", "--timeout", SILENCE_SECONDS]
        install(python, *tries, "-r", requirements, check=True, capture_output=True)
    except (subprocess.SubprocessError, OSError):
        skip(f"PyPI cannot be reached for {requirements.relative_to(ROOT)}")
    stamp.write_text(wanted)
    return python


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", required=True, type=pathlib.Path)
    args, more = parser.parse_known_args()
    build = args.build.resolve()
    if sys.version_info < (3, 10):
        skip(f"the package needs Python 3.10, this is {sys.version.split()[0]}")
    if not (pathlib.Path(sysconfig.get_path("include")) / "Python.h").exists():
        skip("Python's headers are missing (Debian: python3-dev)")
    python = environment(build / "python_package")
    settings = [f"cmake.define.SWITCHYARD_BUILD={build}", f"build-dir={build / 'python_package/build'}"]
    options = [word for setting in settings for word in ("--config-settings", setting)]
    installed = install(python, "--no-build-isolation", "--no-deps", "--force-reinstall", ROOT, *options)
    if installed.returncode:
        return installed.returncode
    return subprocess.run(
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", HERE, *more],
        cwd=ROOT,
        env={**os.environ, "SWITCHYARD_PROGRAM": str(build / "switchyard")},
    ).returncode


if __name__ == "__main__":
    sys.exit(main())

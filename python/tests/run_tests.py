"""Installs the package into a virtual environment in the build folder, as `pip install` does, and runs its tests there.

    python3 python/tests/run_tests.py --build build/release [--integrations] [PYTEST'S ARGUMENTS]

--integrations installs the packages of others, too, whose tests are skipped without them.
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


def environment(folder, integrations):
    """The Python of an environment with what the tests need; made once for a list of requirements."""
    names = ["requirements.txt"] + ["requirements-integrations.txt"] * integrations
    requirements = [HERE / name for name in names]
    wanted = hashlib.sha256(b"".join(map(pathlib.Path.read_bytes, requirements)) + sys.version.encode()).hexdigest()
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
        files = [word for file in requirements for word in ("-r", file)]
        install(python, *tries, *files, check=True, capture_output=True)
    except (subprocess.SubprocessError, OSError):
        skip(f"PyPI cannot be reached for {' and '.join(names)}")
    stamp.write_text(wanted)
    return python


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", required=True, type=pathlib.Path)
    parser.add_argument("--integrations", action="store_true")
    args, more = parser.parse_known_args()
    build = args.build.resolve()
    if sys.version_info < (3, 10):
        skip(f"the package needs Python 3.10, this is {sys.version.split()[0]}")
    if not (pathlib.Path(sysconfig.get_path("include")) / "Python.h").exists():
        skip("Python's headers are missing (Debian: python3-dev)")
    python = environment(build / ("python_integrations" if args.integrations else "python_package"), args.integrations)
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

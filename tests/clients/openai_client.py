"""OpenAI's and Anthropic's Python clients against `switchyard serve` on a tiny model with random weights.

    python3 tests/clients/openai_client.py --build build/release

Makes a virtual environment in the build folder with the clients of requirements.txt, and runs itself in it. Exit
status 77 where PyPI cannot be reached, 1 where a check failed or fewer ran than are expected.
"""

import argparse
import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile
import types
import venv

import serving

LEAST_CHECKS = 86
SKIPPED = 77
KEY = "a key of this test"
INSTALL_SECONDS, SILENCE_SECONDS = 300, 15


def environment_with_client(build):
    """The Python of a virtual environment that has the client; made once for a list of requirements."""
    requirements = serving.HERE / "requirements.txt"
    wanted = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()
    folder = pathlib.Path(build).resolve() / "openai_client"
    stamp, python = folder / "installed", folder / "bin/python"
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    try:
        venv.create(folder, clear=True, with_pip=True)
    except (subprocess.SubprocessError, OSError, SystemExit) as error:  # Debian 13's venv ends the program
        print(f"skipped: this Python makes no virtual environments (Debian: python3-venv)\n{error}")
        sys.exit(SKIPPED)
    try:
        # Without an answer from PyPI it gives up within a minute.
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "1",
                        "--timeout", str(SILENCE_SECONDS), "-r", requirements], check=True, capture_output=True,
                       text=True, timeout=INSTALL_SECONDS)
    except (subprocess.SubprocessError, OSError) as error:
        told = getattr(error, "stderr", None) or str(error)
        told = told.decode(errors="replace") if isinstance(told, bytes) else told
        print(f"skipped: PyPI cannot be reached\n{told.strip()[-500:]}")
        sys.exit(SKIPPED)
    stamp.write_text(wanted)
    return python


def run_checks(args):
    import openai

    import checks
    import chat_checks  # noqa: F401: their checks register themselves
    import error_checks  # noqa: F401
    import messages_checks  # noqa: F401
    import path_checks  # noqa: F401
    import responses_checks  # noqa: F401

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        model = serving.make_tiny_model(args.switchyard, folder)
        (folder / "keys").write_text(f"# keys\n{KEY}\n")
        common = [f"chat_template_path={serving.TEMPLATE}", "max_target_length=2048", *args.settings.split()]
        with serving.Server(args.switchyard, model, folder, *common, "--alias", "other-name") as server, \
                serving.Server(args.switchyard, model, folder, *common, "--api-key-file", str(folder / "keys"),
                               "--cors", "http://page.test") as keyed:
            client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=60)
            given = types.SimpleNamespace(server=server, keyed=keyed, client=client, key=KEY)
            status = checks.run_all(given, LEAST_CHECKS, args.only)
            for one in (server, keyed):
                if one.process.poll() is not None or one.stop() != 0:
                    print(f"FAIL the server ended with status {one.process.poll()}")
                    status = 1
                if status != 0:
                    print(f"the end of its log:\n{one.log.read_text()[-1500:]}")
    return status


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=str(serving.ROOT / "build/release"), help="where the environment is made")
    parser.add_argument("--switchyard", help="the program; that of the build folder without")
    parser.add_argument("--settings", default="deterministic_batches=true", help="keys of both servers")
    parser.add_argument("--only", default="", help="checks whose names have this text")
    args = parser.parse_args()
    args.switchyard = pathlib.Path(args.switchyard or pathlib.Path(args.build) / "switchyard").resolve()
    args.only = args.only.replace(" ", "_")
    python = environment_with_client(args.build)
    if pathlib.Path(sys.prefix).resolve() != python.parents[1]:
        os.execv(python, [str(python), *sys.argv])
    sys.exit(run_checks(args))


if __name__ == "__main__":
    main()

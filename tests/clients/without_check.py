"""What a build without TLS, libedit or MPI does in their place. Status 77 for a build that has all three.

python3 tests/clients/without_check.py [--program build/release/switchyard]
"""

import argparse
import json
import os
import pathlib
import pty
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/peers"))
import mock_chat_server  # noqa: E402

MODEL = ROOT / "tests/golden/hf/qwen3moe-tiny"
WAIT_SECONDS = 20


def expect_refused(words, expected, **environment):
    done = subprocess.run(words, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=WAIT_SECONDS)  # fmt: skip
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and expected in done.stderr, (words, done)


def check_tls(program, folder):
    files = []
    for name in ("cert.pem", "key.pem"):
        files.append(pathlib.Path(folder) / name)
        files[-1].write_text("not read\n")
    tls = [f"tls_cert={files[0]}", f"tls_key={files[1]}"]
    expect_refused([program, "serve", MODEL, "tokenizer_type=byte", *tls], "this build has no TLS")
    expect_refused([program, "chat", "--url", "https://127.0.0.1:1"], "this build has no TLS")


def check_mpi(program):
    words = [program, "train", "model_name=deepseek3-tiny", "dataset_type=synthetic", "steps=1"]
    expect_refused(words, "expected a build with MPI under mpirun", OMPI_COMM_WORLD_RANK="0", OMPI_COMM_WORLD_SIZE="2")


def check_plain_lines(program):
    """At a terminal, lines come as they are typed and the answer follows them."""
    server = mock_chat_server.start()
    ours, theirs = pty.openpty()
    chat = subprocess.Popen([program, "chat", "--url", f"http://127.0.0.1:{server.server_address[1]}"], stdin=theirs, stdout=theirs,
                            stderr=theirs, start_new_session=True)  # fmt: skip
    os.close(theirs)
    shown = b""

    def expect(text):
        nonlocal shown
        end = time.monotonic() + WAIT_SECONDS
        while text.encode() not in shown:
            assert time.monotonic() < end, (text, shown)
            shown += os.read(ours, 4096)
        shown = shown.split(text.encode(), 1)[1]

    try:
        expect("> ")
        os.write(ours, "Grüße\n".encode())
        expect("You said: Grüße")
        expect("> ")
        os.write(ours, b"joined\\\n")
        expect(". ")
        os.write(ours, b"lines\n")
        expect("You said: joined")
        expect("> ")
        os.write(ours, b"\x04")
        assert chat.wait(WAIT_SECONDS) == 0
    finally:
        chat.kill()
        os.close(ours)
        server.shutdown()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", default=ROOT / "build/release/switchyard", type=pathlib.Path)
    program = parser.parse_args().program.resolve()
    with tempfile.TemporaryDirectory() as folder:
        told = pathlib.Path(folder) / "doctor.json"
        subprocess.run([program, "doctor", "--quick", "--json", told], check=True, capture_output=True)
        states = {part["name"]: part for part in json.loads(told.read_text())["parts"]}
        lacks = [name for name in ("tls", "libedit", "mpi") if "this build" in states[name]["what"]]
        if not lacks:
            print("skipped: this build has TLS, libedit and MPI")
            return 77
        if "tls" in lacks:
            check_tls(program, folder)
        if "libedit" in lacks:
            check_plain_lines(program)
        if "mpi" in lacks:
            check_mpi(program)
    print(f"without {', '.join(lacks)} all is as it should be")
    return 0


if __name__ == "__main__":
    sys.exit(main())

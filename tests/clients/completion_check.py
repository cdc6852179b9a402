"""Completes command lines in the shells that are installed, as a person does at a terminal.

    python3 tests/clients/completion_check.py --program build/release/switchyard

Bash must be there; zsh and fish are tried where they are, and named where not. Each line is typed with tabs in it, and
what the shell then runs is compared. Also every option that a command's page explains is one that is completed.
"""

import argparse
import os
import pathlib
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time

SECONDS = 30
START = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-i"],
    "fish": ["fish", "--no-config", "-i"],
}
SETUP = {
    "bash": "source <(switchyard completion bash); PS1=",
    "zsh": "autoload -U compinit; compinit -u -D; source <(switchyard completion zsh); PS1=",
    "fish": "switchyard completion fish | source",
}
# A line is typed behind `switchyard`, \t a tab; the program then gets the words beside it.
LINES = [
    ("tr\t", ["train"]),
    ("convert --merge\t", ["convert", "--merge-adapter"]),
    ("convert --to hug\t", ["convert", "--to", "huggingface"]),
    ("train sparse_matm\ttr\t", ["train", "sparse_matmul=true"]),
    ("train model_name=mixtral-8x7\t", ["train", "model_name=mixtral-8x7b"]),
    ("plan topology=h2\t", ["plan", "topology=h200"]),
    ("train small\t", ["train", "small moe.yml"]),
    ("generate load_parameters_path=wei\t", ["generate", "load_parameters_path=weights/"]),
    ("data build --out wei\t", ["data", "build", "--out", "weights/"]),
    ("data sho\t", ["data", "show"]),
    ("completion fi\t", ["completion", "fish"]),
]
# The program, but what it is given is shown instead of run.
STAND_IN = """#!/bin/sh
[ "$1" = completion ] && [ "$2" != fish ] && exec {program} "$@"
[ "$1" = completion ] && [ ! -t 1 ] && exec {program} "$@"
for word in "$@"; do printf '<%s>' "$word"; done
echo '<<end>>'
"""


class Terminal:
    def __init__(self, words, folder, environment):
        pid, self.file = pty.fork()
        if pid == 0:
            os.chdir(folder)
            os.execvpe(words[0], words, environment)
        self.pid = pid

    def read_until(self, pattern):
        """All that is shown until the pattern is."""
        shown, end = "", time.monotonic() + SECONDS
        while not re.search(pattern, shown):
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.file], [], [], left)[0]:
                raise TimeoutError(f"no {pattern} within {SECONDS} s; shown: {shown[-500:]!r}")
            try:
                shown += os.read(self.file, 4096).decode(errors="replace")
            except OSError:
                raise TimeoutError(f"the shell ended; shown: {shown[-500:]!r}") from None
        return shown

    def type(self, text):
        os.write(self.file, text.encode())


def check_shell(shell, program):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        work = folder / "work"
        (work / "weights").mkdir(parents=True)
        (work / "small moe.yml").touch()
        stand_in = folder / "switchyard"
        stand_in.write_text(STAND_IN.format(program=program))
        stand_in.chmod(0o755)
        environment = {
            **os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "HOME": name, "TERM": "dumb", "HISTFILE": "",
            "INPUTRC": "/dev/null", "XDG_CONFIG_HOME": name, "XDG_DATA_HOME": name,
        }  # fmt: skip
        terminal = Terminal(START[shell], work, environment)
        # The answer is not what is typed, which the terminal shows, too.
        terminal.type(SETUP[shell] + "; echo rea''dy\n")
        terminal.read_until("\nready")
        failures = 0
        for typed, expected in LINES:
            for part in re.split("(?<=\t)", f"switchyard {typed}"):
                terminal.type(part)
                time.sleep(0.5)  # a shell that is still completing takes the next letters for its own
            terminal.type("\n")
            shown = terminal.read_until("<<end>>")
            given = re.findall(r"<([^<>]*)>", shown[shown.index("<") :].split("<<end>>")[0])
            # zsh takes the slash behind a folder away again.
            if [word.rstrip("/") for word in given] != [word.rstrip("/") for word in expected]:
                failures += 1
                print(f"{shell}: switchyard {typed!r} became {given}, expected {expected}")
        os.close(terminal.file)
        os.waitpid(terminal.pid, 0)
        print(f"{shell}: {len(LINES) - failures} of {len(LINES)} lines are completed as they should be")
        return failures


def check_options(program):
    """Compares the options that are completed with those that pages explain."""

    def output(*words):
        return subprocess.run([program, *words], check=True, capture_output=True, text=True).stdout

    failures = 0
    commands = [word for word in output("completion", "words", "").split() if not word.startswith("-")]
    assert len(commands) > 10, commands
    for command in commands:
        offered = set(output("completion", "words", command, "--").split())
        page = output(command, "--help")
        explained = set(re.findall(r"^ +(--[a-z-]+)", page, re.MULTILINE)) | {"--help"}
        named = set(re.findall(r"--[a-z-]+", page)) | {"--help"}
        hidden = {"--inject-fault", "--trust-request-template"}  # of verify for its tests, of chat without effect
        for option in sorted((explained - offered) | (offered - named - hidden)):
            failures += 1
            print(f"{command}: {option} is {'explained, not offered' if option in explained else 'offered, not named'}")
    print(f"options of {len(commands)} commands: {failures} differ from the pages")
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", required=True, type=pathlib.Path)
    program = parser.parse_args().program.resolve()
    failures = check_options(program)
    for shell in START:
        if shutil.which(shell):
            failures += check_shell(shell, program)
        elif shell == "bash":
            sys.exit("there is no bash")
        else:
            print(f"{shell} is not installed: not tried")
    sys.exit(failures != 0)


if __name__ == "__main__":
    main()

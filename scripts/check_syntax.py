#!/usr/bin/env python3
"""Compiles every source of a configured build for its errors and warnings alone: no code is made, nothing is linked.

  check_syntax.py BUILD   BUILD: a build folder with compile_commands.json

Exit status 1, with the compiler's first lines, where a source does not compile, or where there is none.
"""
import concurrent.futures
import json
import os
import pathlib
import shlex
import subprocess
import sys


def syntax_only(command):
    """The command without the compiler cache, and without what it would write."""
    words = shlex.split(command)
    if words[0].endswith("ccache"):
        words = words[1:]
    kept, skip = [], False
    for word in words:
        if skip:
            skip = False
        elif word in ("-o", "-MT", "-MF"):
            skip = True
        elif word not in ("-c", "-MD"):
            kept.append(word)
    return kept + ["-fsyntax-only"]


def check(entry):
    ran = subprocess.run(syntax_only(entry["command"]), cwd=entry["directory"], capture_output=True, text=True)
    return entry["file"], ran.returncode, ran.stderr


def main():
    entries = [entry for entry in json.loads((pathlib.Path(sys.argv[1]) / "compile_commands.json").read_text())
               if "/third_party/" not in entry["file"]]
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for file, status, errors in pool.map(check, entries):
            if status:
                failed += 1
                print(f"{file} does not compile:\n" + "\n".join(errors.splitlines()[:12]), flush=True)
    print(f"{len(entries)} sources, {failed} do not compile", flush=True)
    return 1 if failed or not entries else 0


sys.exit(main())

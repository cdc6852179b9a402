"""`switchyard chat` at a terminal that tmux plays, against a server without a model. Status 77 where tmux is missing.

python3 tests/clients/terminal_check.py [--program build/release/switchyard] [--capture docs/serving_terminal.txt]
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/peers"))
import mock_chat_server  # noqa: E402

WAIT_SECONDS = 20


class Terminal:
    """A terminal of a tmux server of its own, with a shell in it."""

    def __init__(self, folder):
        self.socket = str(pathlib.Path(folder) / "tmux")
        environment = {"HOME": folder, "PATH": os.environ["PATH"], "TERM": "screen", "LC_ALL": "C"}
        subprocess.run(["tmux", "-u", "-S", self.socket, "-f", "/dev/null", "new-session", "-d", "-x", "100", "-y", "40", "-c", folder,
                        "bash --norc --noprofile"], env=environment, check=True)
        self.line("PS1='$ '; clear")
        self.expect("$", at_end=True)

    def tmux(self, *arguments, text=None):
        return subprocess.run(["tmux", "-u", "-S", self.socket, *arguments], check=True, capture_output=True, text=True, input=text).stdout

    def keys(self, *keys):
        self.tmux("send-keys", *keys)

    def type(self, text):
        self.tmux("send-keys", "-l", text)

    def line(self, text):
        self.type(text)
        self.keys("Enter")

    def paste(self, text):
        self.tmux("load-buffer", "-", text=text)
        self.tmux("paste-buffer", "-p", "-r")

    def screen(self):
        return self.tmux("capture-pane", "-p", "-J", "-S", "-200").rstrip()

    def expect(self, text, at_end=False):
        end = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < end:
            screen = self.screen()
            if screen.endswith(text.rstrip()) if at_end else text in screen:
                return screen
            time.sleep(0.05)
        raise AssertionError(f"expected {text!r} on\n{self.screen()}")

    def clear(self):
        self.keys("C-l")
        time.sleep(0.2)
        self.tmux("clear-history")

    def close(self):
        subprocess.run(["tmux", "-S", self.socket, "kill-server"], capture_output=True)


def begin(terminal, program, url, *arguments):
    terminal.line("clear")
    terminal.line(" ".join([str(program), "chat", "--url", url, *arguments]))
    terminal.expect("\n>", at_end=True)


def end(terminal, status):
    terminal.expect("\n$", at_end=True)  # what is typed before the shell reads may be lost
    terminal.line("echo ended with $?")
    terminal.expect(f"\nended with {status}\n")


def check_beginning(terminal, program, url):
    terminal.expect("small-moe, 4096 tokens of context; /help lists the commands\n>", at_end=True)
    terminal.keys("C-d")
    end(terminal, 0)
    terminal.line(f"clear; {program} chat --url http://127.0.0.1:1")
    terminal.expect("switchyard: [chat] http://127.0.0.1:1: ")
    end(terminal, 1)
    terminal.line(f"clear; {program} chat --url {url} bogus=1")
    terminal.expect("[chat] unknown field bogus")
    end(terminal, 2)


def check_typing(terminal, server):
    terminal.line("Grüße, 日本語")  # in the locale C, too
    terminal.expect("You said: Grüße, 日本語")
    terminal.expect("prompt tokens reused\n>", at_end=True)
    terminal.line("second")
    terminal.expect("You said: second")
    terminal.keys("Up", "Up")
    terminal.expect("> Grüße, 日本語", at_end=True)
    terminal.keys("BSpace", "BSpace")
    terminal.type("x")
    terminal.keys("Enter")
    terminal.expect("You said: Grüße, 日x")
    assert server.last["messages"][-1]["content"] == "Grüße, 日x"


def check_lines(terminal, server):
    terminal.paste("pasted one\npasted two")
    terminal.expect("pasted two", at_end=True)
    terminal.keys("Enter")
    terminal.expect("You said: pasted one\npasted two")
    assert server.last["messages"][-1]["content"] == "pasted one\npasted two"
    for line in ('"""', "quoted one", 'quoted two"""'):
        terminal.line(line)
    terminal.expect("You said: quoted one\nquoted two")
    terminal.line("joined\\")
    terminal.expect("\n. ".rstrip(), at_end=True)
    terminal.line("lines")
    terminal.expect("You said: joined\nlines")
    long = "long " * 50 + "end"
    terminal.type(long)
    terminal.tmux("resize-window", "-x", "60", "-y", "30")
    time.sleep(0.3)
    terminal.line("!")
    terminal.expect("You said: long")
    assert server.last["messages"][-1]["content"] == long + "!"
    terminal.tmux("resize-window", "-x", "100", "-y", "40")


def check_interrupts(terminal, server):
    terminal.line("slow")
    terminal.expect("word word word")
    server.stopped.clear()
    terminal.keys("C-c")
    terminal.expect("ended here")
    assert server.stopped.wait(5), "the server was not told"
    terminal.line("after")
    terminal.expect("You said: after")
    kept = server.last["messages"][-2]
    assert kept["role"] == "assistant" and kept["content"].startswith("word word")
    terminal.type("given up")
    terminal.keys("C-c")
    terminal.expect("> given up\n>", at_end=True)
    terminal.keys("C-c")
    terminal.expect("Ctrl-C once more")


def check_answers(terminal):
    terminal.line("escape")
    terminal.expect("\\x1b[31mred\\x07 \\x9b2J \\x1b]0;title\\x07end")
    terminal.line("refuse")
    terminal.expect("error: This model's maximum context length is 4096 tokens.")
    terminal.line("/set temperature=warm")
    terminal.expect("[chat] temperature: expected a number of 0 to 100, got warm")
    terminal.line("/undo")
    terminal.line("/save talk.json")
    terminal.expect("messages are in talk.json")


def check(program, folder, capture):
    server = mock_chat_server.start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    terminal = Terminal(folder)
    try:
        begin(terminal, program, url)
        check_beginning(terminal, program, url)
        begin(terminal, program, url, "temperature=0.2")
        check_typing(terminal, server)
        check_lines(terminal, server)
        if capture:
            pathlib.Path(capture).write_text(terminal.screen() + "\n")
        check_interrupts(terminal, server)
        check_answers(terminal)
        terminal.keys("C-d")
        end(terminal, 0)
        history = pathlib.Path(folder) / ".local/state/switchyard/history"
        assert history.stat().st_mode & 0o777 == 0o600
        assert json.loads((pathlib.Path(folder) / "talk.json").read_text())[0]["content"] == "Grüße, 日本語"
        begin(terminal, program, url)
        terminal.keys("Up")  # what was typed before
        terminal.expect("> /save talk.json", at_end=True)
        terminal.keys("C-c")
        terminal.expect("> /save talk.json\n>", at_end=True)
        terminal.keys("C-c")
        terminal.expect("Ctrl-C once more, too)\n>", at_end=True)
        terminal.keys("C-c")
        end(terminal, 130)
    finally:
        terminal.close()
        server.shutdown()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", default=ROOT / "build/release/switchyard", type=pathlib.Path)
    parser.add_argument("--capture", help="a file for a captured session")
    options = parser.parse_args()
    if shutil.which("tmux") is None:
        print("tmux is missing")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        check(options.program.resolve(), folder, options.capture)
    print("the terminal does what it should")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What calls cost from Python: the same works by a C++ program and by Python, in turns, and texts by `serve`.

    PYTHONPATH=build/release/python python3 bench/peers/python_overhead.py --build build/release

Each side is a process with an engine of its own, which waits while the other works. A round is one call of each; a
ratio is the median over all rounds of the seconds in Python by those of the C++ call just before or behind it. Its
table goes to docs/python.md. Status 1 where a ratio is over its bound.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = [str(ROOT / "configs/examples/small-moe.yml"), "vocab_size=8192", "per_device_batch_size=8",
         "max_target_length=512", "steps=1000000", "learning_rate=0"]
TO_RUN = ["weight_dtype=bfloat16"]  # as `serve` has them
BOUNDS = {"generate": 1.02, "stream": 1.02, "train_step": 1.01, "forward": 1.01}
CALLS = {"generate": "`generate` of 64 tokens", "stream": "`stream` of 64 tokens",
         "train_step": "`train_step` of 8×128 tokens", "forward": "`forward` of 8×512 tokens, logits as an array"}
PROMPTS = [[i + 1] * 16 for i in range(8)]


def work_in_python(settings):
    """The Python side: as python_overhead.cc, call by call."""
    import numpy as np
    import switchyard

    engine = switchyard.Engine.open(settings[0], **dict(word.split("=", 1) for word in settings[1:]))
    sampling = {"max_tokens": 64, "ends_by_model": False}

    def ids(rows, length):
        return (np.arange(rows * length).reshape(rows, length) * 31 % engine.vocabulary).astype(np.int32)

    works = {
        "forward": lambda: np.asarray(engine.forward(ids(8, 512)))[-1, -1, -1],
        "train_step": lambda: engine.train_step(ids(8, 128)).loss,
        "generate": lambda: engine.generate(PROMPTS[0], **sampling).tokens[-1],
        "stream": lambda: sum(token.id for token in engine.stream(PROMPTS[0], **sampling)),
        "eight": lambda: engine.generate(PROMPTS, **sampling)[7].tokens[-1],
    }
    print("ready", flush=True)
    for line in sys.stdin:
        begin = time.perf_counter()
        works[line.strip()]()
        print(time.perf_counter() - begin, flush=True)


class Side:
    """A process that works when it is told to."""

    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline().strip() == "ready", command

    def seconds(self, work):
        self.process.stdin.write(work + "\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Server:
    """`switchyard serve` of the same model, asked over HTTP for eight texts in one request."""

    def __init__(self, program, folder):
        told = pathlib.Path(folder, f"serve{time.time_ns()}.json")
        self.process = subprocess.Popen([program, "serve", *MODEL, *TO_RUN, "--port", "0", "--json", told],
                                        stdout=subprocess.DEVNULL)
        while not told.exists():
            assert self.process.poll() is None, "serve ended"
            time.sleep(0.05)
        self.url = f"http://127.0.0.1:{json.loads(told.read_text())['port']}/v1/completions"

    def seconds(self, work):
        body = json.dumps({"prompt": PROMPTS, "max_tokens": 64, "temperature": 0, "ignore_eos": True}).encode()
        request = urllib.request.Request(self.url, body, {"Content-Type": "application/json"})
        begin = time.perf_counter()
        with urllib.request.urlopen(request, timeout=600) as answer:
            made = json.load(answer)["usage"]["completion_tokens"]
        assert made == 8 * 64, made
        return time.perf_counter() - begin

    def close(self):
        self.process.terminate()
        self.process.wait()


def in_turns(python, other, work, rounds):
    """Seconds of both, round by round; who begins changes."""
    pairs = []
    for number in range(rounds + 1):
        sides = [python, other] if number % 2 else [other, python]
        seconds = {side: side.seconds(work) for side in sides}
        pairs.append((seconds[python], seconds[other]))
    return pairs[1:]  # the first one warms up


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--starts", type=int, default=2, help="how often all start anew: memory lies elsewhere")
    args = parser.parse_args()
    build = args.build.resolve()
    pairs = {work: [] for work in [*BOUNDS, "eight"]}
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([build / "switchyard", "bench", "peak", "--json", f"{folder}/peak.json"], check=True,
                       stdout=subprocess.DEVNULL)
        print(pathlib.Path(folder, "peak.json").read_text())
        program = f"{folder}/overhead"
        subprocess.run([os.environ.get("CXX", "c++"), "-std=c++20", "-O2", f"-I{ROOT / 'include'}",
                        pathlib.Path(__file__).with_suffix(".cc"), "-o", program, f"-L{build}", "-lswitchyard",
                        f"-Wl,-rpath,{build}"], check=True)
        for start in range(args.starts):
            for works, keys in ((["train_step", "forward"], []), (["generate", "stream"], TO_RUN)):
                python = Side([sys.executable, __file__, "--worker", *MODEL, *keys])
                native = Side([program, *MODEL, *keys])
                for work in works:
                    pairs[work] += in_turns(python, native, work, args.rounds)
                native.close()
                if keys == TO_RUN:
                    server = Server(build / "switchyard", folder)
                    pairs["eight"] += in_turns(python, server, "eight", args.rounds)
                    server.close()
                python.close()
    print("| call | from Python | from C++ | ratio, middle half | of the fastest |\n|---|---|---|---|---|")
    over = False
    for work in BOUNDS:
        over |= row(CALLS[work], pairs[work]) > BOUNDS[work]
    ratio = row("eight texts of 64 tokens side by side (by `serve` in place of C++)", pairs["eight"])
    over |= ratio > 1 / 0.95
    sys.exit(over)


def row(name, pairs):
    """Prints a line of the table; returns the ratio."""
    ratios = sorted(one / other for one, other in pairs)
    one, other = (statistics.median(side) for side in zip(*pairs))
    low, ratio, high = statistics.quantiles(ratios, n=4)
    fastest = min(one for one, _ in pairs) / min(other for _, other in pairs)  # where the machine has other work
    print(f"| {name} | {1000 * one:.1f} ms | {1000 * other:.1f} ms | {ratio:.3f} ({low:.3f} to {high:.3f}) | {fastest:.3f} |")
    return ratio


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work_in_python(sys.argv[2:])
    else:
        main()

"""Runs every example of README.md, CONTRIBUTING.md, docs/*.md and of the program's help pages.

    python3 tests/examples/run_examples.py --build build/release [WORD]

With WORD it runs those pages alone whose name has it. A page's examples run in their order in a folder of their own,
where the sources are links and `switchyard` is the built program. An example fails unless its exit status is 0. RULES
says which examples run in another form, and why; prepare() makes the files that pages take for granted.
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
LINKED = ["Makefile", "README.md", "bench", "configs", "docs", "examples", "scripts", "tests"]
LEAST_EXAMPLES = 150
SECONDS, SERVER_SECONDS = 300, 120  # of machines with other work, too
SMALL = " per_device_batch_size=2 max_target_length=64 eval_interval=-1"
PROGRAM = r"(?:build/release/)?switchyard"

# (pattern, what takes its place, why), each applied in turn; None: the example is not run. A row without a match fails.
RULES = [
    # Examples that need what a test machine lacks.
    (r"^mpirun .* build/cuda/switchyard train (.*)", r"switchyard config \1 ranks=8", "needs GPUs: settings are read"),
    (r"^build/cuda/switchyard train (.*)", r"switchyard config \1", "needs a GPU: settings are read"),
    (r"^build/cuda/switchyard selftest device=cuda$", "switchyard selftest swiglu device=cuda_emulated", "needs a GPU"),
    (r"(bench generate) device=cuda", r"\1", "needs a GPU"),
    (r"^(bench/device/measure.py) --out .*", r"\1 --help", "needs a GPU"),
    (r"^mpirun -n 16 --host .*", None, "needs several machines, and has placeholders"),
    (r"^SWITCHYARD_FAULT=.* mpirun …$", None, "the beginning of a command"),
    (r"^python3 -m venv ~/peers .*|^~/peers/bin/python .*", None, "needs the network"),
    (r"^(?:make wheel && )?pip install .*|^python tests/peers/.*|^hf download .*", None, "needs the network"),
    (r"^docker .*", None, "needs Docker and the network"),
    (r"^(switchyard completion fish) \| source .*", r"\1", "the rest is a command of fish"),
    (r"^cmake .*", None, "builds for minutes; the test `install` builds examples/embed"),
    (r"^make\b", "make -n", "installs, builds or runs for minutes: that the target exists"),
    # Placeholders.
    (r"--list WORD$", "--list expert", "a placeholder"),
    (r"selftest device=NAME$", "selftest swiglu device=cuda_emulated", "a placeholder"),
    (r"^switchyard (data build --out DIR|data show --json|serve --json FILE)$", None, "names an option"),
    (r"(inspect (?:checkpoint exported|.*/checkpoints/200))$", r"\1; test $? = 3", "its two sides differ: status 3"),
    # Long ones.
    (r"^(bench/device/measure.py --device cuda_emulated .*)", r"\1 --only attention", "long"),
    (rf"^((?:mpirun .*)?{PROGRAM} train .*)", r"\1 steps=2" + SMALL, "long"),
    (r"(--template > my-moe.yml && switchyard train my-moe.yml) .*", r"\1 steps=2" + SMALL, "long"),
    (rf"^({PROGRAM} verify .*small-moe.yml.*)", r"\1" + SMALL, "long"),
    (r"(switchyard chat --url .*)", r"\1 max_tokens=8", "an untrained model seldom ends"),
    (r"(switchyard chat (?!--url).*)", r"\1 max_target_length=128", "an untrained model seldom ends"),
    (r"^mpirun -n 8 (.*)", r"mpirun -n 2 \1 ici_expert_parallelism=2 ici_fsdp_parallelism=1 max_target_length=16",
     "slow on two cores"),
    (rf"^({PROGRAM} selftest)(| gmm attention.*)$", r"\1 swiglu", "long; the test `selftest` runs all"),
    (rf"({PROGRAM} bench .*)", r"\1 --seconds 0.01 copy_mib=8", "long"),
    (r"(bench (?:gmm|moe).*)", r"\1 tokens=16 emb=64 mlp=64 experts=4 topk=2", "long"),
    (r"(bench attention.*)", r"\1 seq=128", "long"),
    (r"(bench delta.*)", r"\1 seq=128", "long"),
    (r"(bench loss.*)", r"\1 rows=16 vocab=1024", "long"),
    (r"(bench optimizer.*)", r"\1 weights=10000", "long"),
    (r"(bench checkpoint.*)", r"\1 mib=8", "long"),
    (r"(bench (?:sampling|grammar).*)", r"\1 vocab=4096", "long"),
    (r"(bench comm.*)", r"\1 kib=4", "long"),
    (r"(bench (?:train|generate).*)", r"\1 base_emb_dim=64 base_moe_mlp_dim=64 base_mlp_dim=64 vocab_size=257"
     " max_target_length=64 per_device_batch_size=1", "long"),
]


def prepare(run):
    """The files that pages take for granted, made once: their names on the pages, and where they are."""
    run("switchyard train configs/examples/small-moe.yml run_name=mine enable_checkpointing=true checkpoint_period=1"
        " steps=2" + SMALL)
    run("python3 configs/examples/chat/make_chat_data.py chat-data && switchyard train"
        " configs/examples/chat/small-chat.yml enable_checkpointing=true steps=2" + SMALL)
    run("switchyard convert tests/golden/gguf/qwen3moe/Q4_0.gguf checkpoint")
    run("switchyard convert checkpoint model")
    run("cp tests/clients/chat_template.jinja model")
    run("sed -n '/^```yaml$/,/^```$/{/^```/!p}' docs/layouts.md > rows.yml")
    gguf, mine = "tests/golden/gguf/qwen3moe/Q4_0.gguf", "switchyard_output/mine"
    return {"FOLDER": "model", "Qwen3-30B-A3B": "model", "model": "model", "model.gguf": gguf, "TEXTS": "docs",
            "model-Q4_K_M.gguf": gguf, "held_out.txt": "README.md", "~/texts": "docs", mine: mine,
            "switchyard_output/small-chat": "switchyard_output/small-chat", "./rows.yml": "rows.yml",
            "tokenizer.json": "model/tokenizer.json",
            "chats.jsonl": "tests/golden/lora/sft-chat/data.jsonl", "MODEL_FOLDER": "tests/golden/lora/sft-chat", "switchyard_output/writer": mine,
            "switchyard_output/run/checkpoints/100": mine + "/checkpoints/1",
            "switchyard_output/run/checkpoints/200": mine + "/checkpoints/2"}


def join_lines(text):
    return re.sub(r"\\\n\s*", "", text)


def examples_of_document(text):
    """Blocks of examples: each fenced sh block, and each command between backquotes in the text."""
    blocks = []
    for block in re.findall(r"(?ms)^```sh\n(.*?)^```$", text):
        lines = [re.sub(r"\s+# .*|^# .*", "", line).strip() for line in join_lines(block).splitlines()]
        blocks.append([line for line in lines if line])
    prose = re.sub(r"(?ms)^```.*?^```$", "", text)
    for span in (" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose)):
        form = re.search(r"…|\.\.\.|\[--", span)  # of a command line, with what may be left out
        if not form and re.match(rf"make [a-z]|(.*\| )?{PROGRAM} [a-z]+ .", span) and span != "switchyard data build":
            blocks.append([span])
    return blocks


def examples_of_help(text):
    """The lines of a help page that begin with two blanks and a command: one block."""
    return [re.findall(r"(?m)^  ((?:switchyard|curl|echo) .*)$", join_lines(text))]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Page:
    """A page's folder, and what came of its examples."""

    def __init__(self, name, folder, program, stand_ins):
        self.name, self.folder, self.stand_ins = name, folder, stand_ins
        self.failures, self.used, self.server = [], set(), None
        for place in ("build/release", "bin", "switchyard_output"):
            (folder / place).mkdir(parents=True)
        for place in LINKED:
            (folder / place).symlink_to(ROOT / place)
        for place in ("build/release/switchyard", "bin/switchyard"):
            (folder / place).symlink_to(program)
        (folder / ".curlrc").write_text("fail-with-body\nsilent\nshow-error\n")
        self.environment = dict(os.environ, HOME=str(folder), PATH=f"{folder}/bin:{os.environ['PATH']}",
                                OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")

    def shell(self, command, **more):
        return subprocess.Popen(["bash", "-c", "set -o pipefail; " + command], cwd=self.folder, text=True,
                                errors="replace", env=self.environment, start_new_session=True, **more)

    def run(self, command):
        """Its exit status and output."""
        pipe = subprocess.PIPE
        process = self.shell(command, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT)
        try:
            output = process.communicate("Hello!\n", timeout=SECONDS)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return "none in time", process.communicate()[0]
        return process.returncode, output

    def start_server(self, command):
        log = self.folder / "serve.log"
        with open(log, "w") as out:
            self.server = self.shell("exec " + command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        end = time.monotonic() + SERVER_SECONDS
        while time.monotonic() < end and self.server.poll() is None:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/v1/models", timeout=5).close()
                return 0, ""
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)
        self.stop_server()
        return "no answer", log.read_text()

    def stop_server(self):
        if not self.server:
            return
        server, self.server = self.server, None
        server.send_signal(signal.SIGTERM)
        try:
            status = server.wait(SERVER_SECONDS)
        except subprocess.TimeoutExpired:
            server.kill()
            status = server.wait()
        if status:
            self.failures.append(f"{self.name}: the server's exit status is {status} after SIGTERM")

    def link_stand_ins(self, command):
        for name, place in self.stand_ins.items():
            link = self.folder / name.replace("~/", "")
            if re.search(rf"(?<![\w./-]){re.escape(name)}(?![\w.-])", command) and not link.exists():
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(place)

    def form_to_run(self, example):
        command = example
        for index, (pattern, replacement, why) in enumerate(RULES):
            if re.search(pattern, command):
                self.used.add(index)
                if replacement is None:
                    return None, why
                command = re.sub(pattern, replacement, command)
        tool = command.split()[0]
        missing = tool in ("curl", "make", "mpirun") and not shutil.which(tool)
        return (None, f"no {tool} here") if missing else (command, "")

    def judge(self, example, command, status, output):
        if status != 0:
            ran = "" if command == example else f"  ran as: {command}\n"
            self.failures.append(f"{self.name}: {example}\n{ran}  exit status: {status}\n{output[-1500:]}")

    def run_example(self, example):
        command, why = self.form_to_run(example.removesuffix("&").strip())
        if command is None:
            print(f"not run  {self.name}: {example} ({why})", flush=True)
            return
        self.link_stand_ins(command)
        began = time.monotonic()
        if re.match(rf"{PROGRAM} serve ", command):
            self.stop_server()
            self.port = free_port()
            status, output = self.start_server(re.sub(r" --port 8000|$", f" --port {self.port}", command, count=1))
        else:
            if ":8000" in command and not self.server:
                self.run_example("switchyard serve FOLDER --port 8000")
            status, output = self.run(command.replace(":8000", f":{self.port}") if self.server else command)
        print(f"{time.monotonic() - began:5.1f} s  {self.name}: {command}", flush=True)
        self.judge(example, command, status, output)

    def run_blocks(self, blocks):
        for block in blocks:
            try:
                for example in block:
                    self.run_example(example)
            finally:
                self.stop_server()
        return self


def read_pages(program):
    pages = {}
    for file in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md"))]:
        pages[str(file.relative_to(ROOT))] = examples_of_document(file.read_text())

    def help_page(*words):
        return subprocess.run([program, *words, "--help"], check=True, capture_output=True, text=True).stdout

    for command in re.findall(r"(?m)^  ([a-z]+) ", help_page().split("Subcommands:")[1]):
        pages[f"switchyard {command} --help"] = examples_of_help(help_page(command))
    return pages


def run_pages(pages, program, scratch):
    def page(name, stand_ins):
        return Page(name, scratch / re.sub(r"\W+", "-", name), program, stand_ins)

    first = page("stand-ins", {})
    places = prepare(lambda command: first.judge(command, command, *first.run(command)))
    stand_ins = {name: first.folder / place for name, place in places.items()}
    if first.failures:
        return [first]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda name: page(name, stand_ins).run_blocks(pages[name]), pages))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True, help="the folder of the build")
    parser.add_argument("word", nargs="?", default="", help="pages whose name has it, alone")
    args = parser.parse_args()
    program = pathlib.Path(args.build).resolve() / "switchyard"
    every = read_pages(program)
    failures = [f"{name}: no example" for name, blocks in every.items() if not any(blocks)]
    count = sum(len(block) for blocks in every.values() for block in blocks)
    if count < LEAST_EXAMPLES:
        failures.append(f"{count} examples were found, at least {LEAST_EXAMPLES} are expected")
    pages = {name: blocks for name, blocks in every.items() if args.word in name}
    with tempfile.TemporaryDirectory() as scratch:
        done = run_pages(pages, program, pathlib.Path(scratch))
    used = set().union(*(page.used for page in done))
    if not args.word:
        failures += [f"RULES: nothing matches {rule[0]}" for i, rule in enumerate(RULES) if i not in used]
    for page in done:
        failures += page.failures
    for failure in failures:
        print("FAILED", failure)
    print(f"{count} examples, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

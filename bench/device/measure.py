#!/usr/bin/env python3
"""What a GPU gives, in one call of at most eight minutes: one JSON line a measurement, with card, clocks and commit.

    bench/device/measure.py                                  # build/cuda/switchyard, device=cuda
    bench/device/measure.py --only attention serve --out attention.jsonl
    bench/device/measure.py --device cuda_emulated --program build/release/switchyard   # tries the script: tiny sizes

Steps run in the order of their worth, each with a limit of its own; one that fails is a line with `failed`, and the
next begins. What must be equal to the bit is run twice and compared. Needs Python's standard library alone. Exit
status: 0, or 1 where a step failed, differed from itself, or was left out for want of time.
"""
import argparse
import concurrent.futures
import hashlib
import http.client
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ["decoder_block=mixtral", "base_emb_dim=512", "base_num_decoder_layers=8", "num_experts=8", "num_experts_per_tok=2",
         "base_mlp_dim=1024", "base_moe_mlp_dim=1024", "base_num_query_heads=8", "base_num_kv_heads=4", "head_dim=64",
         "vocab_size=32000", "dtype=bfloat16", "weight_dtype=bfloat16"]
TINY_MODEL = ["decoder_block=mixtral", "base_emb_dim=32", "base_num_decoder_layers=1", "num_experts=4", "num_experts_per_tok=2",
              "base_mlp_dim=32", "base_moe_mlp_dim=32", "base_num_query_heads=2", "base_num_kv_heads=2", "head_dim=16",
              "vocab_size=260", "dtype=bfloat16", "weight_dtype=bfloat16"]
WIDTHS = [(64, 64), (96, 96), (128, 128), (192, 128), (256, 256)]  # of queries and keys, of values


# Steps one after the other, and as graphs.
WAYS = [("eager", {"SWITCHYARD_GRAPHS": "off"}), ("graph", {"SWITCHYARD_GRAPHS": "on"})]


class Failed(Exception):
    """A step that did not give what it was asked for; says why in one line."""


class Meter:
    def __init__(self, args, folder):
        self.args, self.folder, self.failures = args, folder, 0
        self.end = time.monotonic() + args.seconds
        self.out = open(args.out, "w", encoding="utf-8")
        self.who = {"card": self.card(), "commit": args.commit or commit_of_source()}
        self.tiny = args.device != "cuda"

    def card(self):
        return nvidia_smi("name") or self.args.device

    def pick(self, full, tiny):
        return tiny if self.tiny else full

    def say(self, step, **fields):
        self.failures += "failed" in fields or fields.get("equal") is False
        line = json.dumps({"step": step, **fields, **self.who, **clocks()})
        print(line, file=self.out, flush=True)
        print(line, flush=True)

    def left(self):
        return self.end - time.monotonic()

    def run(self, words, limit, ends=(0,), settings=None):
        """The program's standard output; Failed where it does not end well or in time. `settings`: of its environment."""
        command = [self.args.program, *words]
        limit = min(limit, self.left())
        if limit < 1:
            raise Failed("no time left")
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=limit, check=False,
                                  env={**os.environ, **(settings or {})})
        except subprocess.TimeoutExpired:
            raise Failed(f"{' '.join(words[:2])}: not done after {limit:.0f} s") from None
        if done.returncode not in ends:
            raise Failed(f"{' '.join(words[:2])}: exit status {done.returncode}: {last_line(done.stderr)}")
        return done.stdout

    def bench(self, step, words, limit=60, settings=None, **fields):
        """A line for each result of `switchyard bench`, and for the peaks of its run: with the kernels that have run
        on a card, and with all, in turns."""
        for kernels in self.pick(["proven", "all"], ["all"]):
            self.bench_with(kernels, step, words, limit, settings, fields)

    def bench_with(self, kernels, step, words, limit, settings, fields):
        file = self.folder / "bench.json"
        file.unlink(missing_ok=True)
        seconds = "0.01" if self.tiny else "0.4"
        self.run(["bench", *words, f"device={self.args.device}", f"gpu_kernels={kernels}", "--seconds", seconds, "--json",
                  str(file)], limit, settings=settings)
        report = json.loads(file.read_text())
        own = [r for r in report["results"] if r["name"] != "peak" or words[0] == "peak"]
        if not own:
            raise Failed(f"bench {' '.join(words)}: no result, too large for this card?")
        for result in own:
            self.say(step, gpu_kernels=kernels, **fields, **result, peaks=report["peaks"])


def last_line(text):
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no word"


def nvidia_smi(query):
    try:
        done = subprocess.run(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"], capture_output=True,
                              text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.splitlines()[0].strip() if done.returncode == 0 and done.stdout.strip() else ""


def clocks():
    """Clock, power and temperature at the end of a measurement; nothing without nvidia-smi."""
    values = nvidia_smi("clocks.sm,clocks.mem,power.draw,temperature.gpu").split(",")
    if len(values) != 4:
        return {}
    return dict(zip(("clock_mhz", "memory_clock_mhz", "watts", "celsius"), (v.strip() for v in values)))


def commit_of_source():
    done = subprocess.run(["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"], capture_output=True,
                          text=True, check=False)
    return done.stdout.strip() or "unknown"


def selftest_of(m, name):
    """The results of a kernel, in a process of its own: one that hangs or faults spoils no other."""
    file = m.folder / f"selftest-{name.replace(' ', '-')}.json"
    try:
        m.run(["selftest", "--only", name, f"device={m.args.device}", "--json", str(file)], 60, ends=(0, 3))  # 3: a difference
        return json.loads(file.read_text())["results"]
    except Failed as error:
        return [{"kernel": name, "implementation": "", "pass": False, "failure": str(error)}]


def proof_lines(results, day):
    """What proofs.h may say of rows that must run on a card, and agreed in all their cases on this one."""
    text = (ROOT / "src/kernels/registry/proofs.h").read_text()
    for kernel, row, source in re.findall(r'constexpr Proof \w+\{"(\w+)",\s*"(\w+)",\s*"([^"]+)"', text):
        ran = [r for r in results if r["implementation"] == row and (kernel == "product" or r["kernel"].startswith(kernel))]
        if ran and all(r["pass"] for r in ran):
            digits = hashlib.sha256((ROOT / "src/kernels" / source).read_bytes()).hexdigest()[:16]
            yield f'"{kernel}", "{row}", "{source}", "{day}", "{digits}"'


def selftest(m):
    names = m.pick(m.run(["selftest", "--list"], 20).split("\n"), ["ragged_row_dot", "swiglu"])
    with concurrent.futures.ThreadPoolExecutor(m.pick(12, 1)) as several:
        results = [r for some in several.map(lambda name: selftest_of(m, name), filter(None, names)) for r in some]
    if not results:
        raise Failed("selftest: no kernel was tested")
    wrong = [r for r in results if not r["pass"]]
    m.say("selftest", results=len(results), equal=not wrong, wrong=wrong,
          proofs=list(proof_lines(results, time.strftime("%d %B %Y"))))


def products(m):
    for emb, mlp in m.pick([(4096, 1024), (1024, 4096), (2048, 2048)], [(32, 16)]):
        shape = m.pick(["tokens=32768", "experts=128", "topk=8"], ["tokens=16", "experts=4", "topk=2"])
        m.bench("products", ["gmm", f"emb={emb}", f"mlp={mlp}", *shape, "skew=balanced"])
    tokens, width = m.pick((4096, 512), (16, 16))  # backward of the weights is 512 x 512 with 4096 in depth
    m.bench("products", ["gmm", f"tokens={tokens}", f"emb={width}", f"mlp={width}", "experts=1", "topk=1", "skew=balanced"])


def attention(m):
    lengths, heads = m.pick("1024,4096,16384", "32"), m.pick(16, 2)
    for keys, values in WIDTHS:
        m.bench("attention", ["attention", f"seq={lengths}", f"heads={heads}", f"head_dim={keys}", f"v_dim={values}"])
    length = m.pick(8192, 32)
    for mask in m.pick(["window=128", "window=1024", "documents=8", "chunk=2048"], ["window=8", "documents=4", "chunk=16"]):
        m.bench("attention", ["attention", f"seq={length}", f"heads={heads}", "head_dim=128", mask])
    m.bench("attention", ["attention", f"seq={length}", f"heads={heads}", f"kv_heads={m.pick(2, 1)}", "head_dim=128"])


def moe(m):
    for shape in m.pick([["tokens=32768", "emb=4096", "mlp=1024", "experts=128", "topk=8"],
                         ["tokens=32768", "emb=4096", "mlp=4096", "experts=8", "topk=2"]],
                        [["tokens=16", "emb=32", "mlp=16", "experts=4", "topk=2"]]):
        m.bench("moe", ["moe", *shape])
    decode = m.pick(["tokens=1,8,32", "emb=4096", "mlp=1024", "experts=128", "topk=8"],
                    ["tokens=1,4", "emb=64", "mlp=32", "experts=4", "topk=2"])
    m.bench("moe", ["moe", *decode, "direction=fwd", "weight_format=bfloat16,int4"])


def model(m):
    """The folder of a run that has a checkpoint of the model; made once."""
    folder = m.folder / "model"
    if not folder.exists():
        m.run(["train", *train_words(m, folder.parent, folder.name), "steps=1", "enable_checkpointing=true"], 90)
    return folder


def train_words(m, parent, name):
    return [*m.pick(MODEL, TINY_MODEL), f"device={m.args.device}", "dataset_type=synthetic", "tokenizer_type=byte",
            f"base_output_directory={parent}", f"run_name={name}", "enable_tensorboard=false",
            f"per_device_batch_size={m.pick(4, 1)}", f"max_target_length={m.pick(1024, 16)}"]


def generate(m):
    tokens = [f"prompt_tokens={m.pick(512, 8)}", f"tokens={m.pick(64, 3)}"]
    for rows in m.pick([1, 32], [1, 2]):
        for way, settings in WAYS:
            m.bench("generate", ["generate", *m.pick(MODEL, TINY_MODEL), *tokens, f"per_device_batch_size={rows}"],
                    settings=settings, way=way)
    m.bench("generate", ["generate", *m.pick(MODEL, TINY_MODEL), *tokens, "weight_format=int4"])
    texts = []
    for _, settings in WAYS:
        file = m.folder / "generated.json"
        file.unlink(missing_ok=True)
        m.run(["generate", str(model(m)), "prompt=The first of them", f"device={m.args.device}", "decode_sampling_strategy=weighted",
               f"max_target_length={m.pick(256, 24)}", "--json", str(file)], 60, settings=settings)
        texts.append([row["tokens"] for row in json.loads(file.read_text())["results"]])
    made = sum(map(len, texts[0]))
    if made == 0:
        raise Failed("generate: no token was made")
    m.say("generate twice", equal=texts[0] == texts[1], tokens=made)


class Server:
    """`switchyard serve` while the block runs."""

    def __init__(self, m, settings):
        self.file, self.log = m.folder / "server.json", m.folder / "server.log"
        self.file.unlink(missing_ok=True)
        command = [m.args.program, "serve", str(model(m)), f"device={m.args.device}", *settings, "--port", "0", "--json", str(self.file)]
        self.output = open(self.log, "w", encoding="utf-8")
        self.process = subprocess.Popen(command, stdout=self.output, stderr=subprocess.STDOUT)

    def __enter__(self):
        end = time.monotonic() + 60
        while not self.file.exists():
            if self.process.poll() is not None or time.monotonic() > end:
                self.__exit__()
                raise Failed(f"serve does not start: {last_line(self.log.read_text(errors='replace'))}")
            time.sleep(0.02)
        self.port = json.loads(self.file.read_text())["port"]
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.output.close()

    def complete(self, prompt, tokens, answers, index):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0.8, "seed": index}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answers[index] = json.loads(connection.getresponse().read())

    def texts(self, count, prompt_length, tokens):
        """Seconds and answers of `count` requests at once, whose prompts differ."""
        answers, begin = [None] * count, time.monotonic()
        prompts = [(f"{i} " + "the quick brown fox " * prompt_length)[:prompt_length] for i in range(count)]
        threads = [threading.Thread(target=self.complete, args=(p, tokens, answers, i)) for i, p in enumerate(prompts)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wrong = [a for a in answers if a is None or "choices" not in a]
        if wrong:
            raise Failed(f"serve: {wrong[0]}")
        return time.monotonic() - begin, answers


def serve(m):
    count, length, tokens = m.pick((32, 128, 200), (3, 8, 4))
    settings = [f"per_device_batch_size={count}", f"max_target_length={length + tokens + 8}", "enable_prefix_caching=false"]
    with Server(m, settings) as server:
        server.texts(count, length, tokens)  # warms up
        rounds = [server.texts(count, length, tokens) for _ in range(2)]
    texts = [[a["choices"][0]["text"] for a in answers] for _, answers in rounds]
    for seconds, answers in rounds:
        made = sum(a["usage"]["completion_tokens"] for a in answers)
        m.say("serve", texts=count, prompt=length, tokens=made, seconds=seconds, tokens_per_s=made / seconds)
    m.say("serve twice", equal=texts[0] == texts[1], texts=count)


def metrics(m, name, settings):
    """The metrics of five steps but for those of the clock; graphs run from the third on."""
    file = m.folder / f"{name}.jsonl"
    file.unlink(missing_ok=True)
    words = ["train", *train_words(m, m.folder, name), "steps=5", "enable_checkpointing=false", f"metrics_file={file}"]
    m.run(words, 90, settings=settings)
    steps = [json.loads(line) for line in file.read_text().splitlines()]
    if len(steps) != 5:
        raise Failed(f"train {name}: {len(steps)} steps of 5")
    return [{key: value for key, value in step.items() if not key.startswith("perf/")} for step in steps]


def train(m):
    shape = [f"per_device_batch_size={m.pick(4, 1)}", f"max_target_length={m.pick(1024, 16)}", "remat_policy=none"]
    for _ in range(2):  # in turns: cards get warm
        for way, settings in WAYS:
            m.bench("train", ["train", *m.pick(MODEL, TINY_MODEL), *shape, f"steps={m.pick(1000, 3)}"], settings=settings,
                    way=way)
    losses = [metrics(m, f"{way}{again}", settings) for way, settings in WAYS for again in (1, 2)]
    m.say("train twice", ways=[way for way, _ in WAYS], equal=all(l == losses[0] for l in losses),
          loss=[step["learning/loss"] for step in losses[0]])


def loss_and_optimizer(m):
    m.bench("loss", ["loss", *m.pick([], ["rows=8", "emb=16", "vocab=40"])])
    m.bench("optimizer", ["optimizer", *m.pick([], ["weights=500"])])


STEPS = [selftest, products, attention, moe, generate, serve, train, loss_and_optimizer]


def peak(m):
    if not m.tiny:
        m.bench("peak", ["peak"])


def main():
    names = [step.__name__ for step in STEPS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=os.environ.get("SWITCHYARD", str(ROOT / "build/cuda/switchyard")))
    parser.add_argument("--device", default="cuda", choices=["cuda", "cuda_emulated"])
    parser.add_argument("--out", default="gpu.jsonl", help="a file for the lines, which are printed, too")
    parser.add_argument("--seconds", type=float, default=480, help="no step begins after so many seconds, and none runs on")
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="STEP", help=", ".join(names))
    parser.add_argument("--commit", default=os.environ.get("COMMIT", ""), help="of the program; this folder's without")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        meter = Meter(args, pathlib.Path(folder))
        for step in [peak, *(s for s in STEPS if s.__name__ in args.only)]:
            begin = time.monotonic()
            try:
                if meter.left() < 1:
                    raise Failed("no time left")
                step(meter)
            except Exception as error:  # the next step may still go well
                meter.say(step.__name__, failed=str(error) if isinstance(error, Failed) else repr(error))
            print(f"{step.__name__}: {time.monotonic() - begin:.1f} s", file=sys.stderr, flush=True)
    sys.exit(1 if meter.failures else 0)


if __name__ == "__main__":
    main()

"""Runs `switchyard bench` and the peers in turn on the same shapes and prints the table of ratios as Markdown.

    python3 -m venv ~/peers && ~/peers/bin/pip install -r bench/peers/requirements.txt
    ~/peers/bin/python bench/peers/compare.py --markdown table.md

Every work is run --rounds times by each in turn, so that what else the machine does hits all alike. A time is the
median over runs of the median round, or with --best the fastest round of all: for a machine that is not quiet.
A peer that fails or takes longer than --limit seconds a run is named with the reason.
"""

import argparse
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

CASES = ("gmm", "ragged", "moe", "attention", "loss", "train", "lora", "generate")
HERE = pathlib.Path(__file__).resolve().parent
V2_LITE, QWEN3, MIXTRAL = "deepseek-v2-lite", "qwen3-30b-a3b", "mixtral-8x7b"
ONEDNN = ("oneDNN, one call an expert (torch)", ["gmm_peer.py", "--peer", "loop"])
GROUPED = ("torch grouped_mm", ["gmm_peer.py", "--peer", "grouped_mm"])
RAGGED = ("JAX ragged_dot", ["gmm_peer.py", "--peer", "ragged_dot"])
LAYERS = [("PyTorch, sorted loop", ["moe_peer.py", "--peer", "sorted_loop"]),
          ("transformers, grouped_mm", ["moe_peer.py", "--peer", "grouped_mm"]),
          ("switchyard.torch.MoELayer", ["torch_layer.py"]),
          ("transformers, eager", ["moe_peer.py", "--peer", "eager"])]


def works():
    """Name, the arguments of `switchyard bench`, and the peers: what they are called and their command."""
    for skew in ("balanced", "zipf", "one_hot"):
        for direction in ("fwd", "dlhs", "drhs"):
            yield ("gmm", ["gmm", f"model={V2_LITE}", f"skew={skew}", f"direction={direction}"], [ONEDNN, GROUPED])
    # ragged_dot on a CPU multiplies every row by every expert and needs memory for that: a shape that it can do.
    for direction in ("fwd", "dlhs", "drhs"):
        yield ("ragged", ["gmm", f"model={V2_LITE}", "tokens=256", "skew=balanced", f"direction={direction}"],
               [RAGGED])
    for model in (V2_LITE, QWEN3, MIXTRAL):
        for direction in ("fwd", "fwd+bwd"):
            # The eager block differs from the sorted loop in how it finds the rows only: once is enough.
            peers = LAYERS if model == V2_LITE else LAYERS[:3]
            yield ("moe", ["moe", f"model={model}", "skew=balanced", f"direction={direction}", TOKENS[model]], peers)
    for direction in ("fwd", "fwd+bwd"):
        yield ("attention", ["attention", f"direction={direction}"],
               [("torch scaled_dot_product_attention", ["dense_peer.py", "attention"])])
    for shape in (["rows=8192", "emb=64", "vocab=129280"], ["rows=2048", "emb=2048", "vocab=102400"]):
        for direction in ("fwd", "fwd+bwd"):
            yield ("loss", ["loss", *shape, f"direction={direction}"],
                   [("torch linear + cross_entropy", ["dense_peer.py", "loss"])])
    # The peer keeps all activations, too.
    yield ("train", ["train", "remat_policy=none"], [("transformers, grouped_mm", ["train_peer.py", "--peer", "grouped_mm"])])
    yield ("lora", ["train", *QWEN3_691M, "lora_rank=16", "lora_target=attention,experts"],
           [("transformers + PEFT, grouped_mm", ["lora_peer.py", "--peer", "grouped_mm"]),
            ("the same, eager", ["lora_peer.py", "--peer", "eager"])])
    for what, rows in (("prefill", 1), ("decode", 1), ("decode", 8)):
        yield ("generate", ["generate", f"what={what}", f"per_device_batch_size={rows}"],
               [("transformers, grouped_mm", ["generate_peer.py", "--peer", "grouped_mm"])])


# The model of lora_peer.py.
QWEN3_691M = ["decoder_block=qwen3_moe", "base_emb_dim=1024", "base_num_decoder_layers=8", "num_experts=64",
              "num_experts_per_tok=8", "base_mlp_dim=384", "base_moe_mlp_dim=384", "base_num_query_heads=16",
              "base_num_kv_heads=4", "head_dim=64", "vocab_size=32000", "use_qk_norm=true", "per_device_batch_size=2",
              "max_target_length=512"]
TOKENS = {V2_LITE: "tokens=8192", QWEN3: "tokens=8192", MIXTRAL: "tokens=2048"}


def run_switchyard(args, work):
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [args.switchyard, "bench", *work, "--seconds", str(args.seconds), "--json", file.name]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return json.load(open(file.name))


def run_peer(args, command, result):
    """The peer's JSON, or the reason why there is none."""
    shape = [] if result["name"] == "train" else [
        f"--{key}={value}" for key, value in result["shape"].items() if key != "model"]
    if result["name"] != "train":
        shape.append(f"--direction={result['direction']}")
    command = [sys.executable, str(HERE / command[0]), *command[1:], *shape, f"--threads={result['threads']}",
               f"--seconds={args.seconds}"]
    environment = dict(os.environ, OMP_NUM_THREADS=str(result["threads"]))
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=args.limit, env=environment)
    except subprocess.TimeoutExpired:
        return f"over {args.limit:.0f} s"
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        return "out of memory" if done.returncode in (-9, 137) else f"fails: {lines[-1][:80] if lines else '?'}"
    return json.loads(done.stdout.strip().splitlines()[-1])


def seconds_of(args, runs):
    if args.best:
        return min(r["best_seconds"] for r in runs)
    return statistics.median(r["seconds"] for r in runs)


def time_text(seconds):
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def shape_text(result):
    s = result["shape"]
    if result["name"] in ("gmm", "moe"):
        skew = f", {s['skew']}" if result["name"] == "gmm" else ""
        return f"{result['name']} {s['model']}, T {s['tokens']}{skew}"
    if result["name"] == "attention":
        return f"attention S {s['seq']}, {s['heads']} heads of {s['head_dim']}, causal"
    if result["name"] == "loss":
        return f"loss {s['rows']} x {s['emb']} x {s['vocab']}"
    if result["name"] == "generate":
        todo = f"{s['prompt']} tokens read" if s["what"] == "prefill" else f"a token after {s['prompt']}"
        return f"generating, {s['parameters'] / 1e6:.0f} M parameters, {s['batch']} x {todo}"
    return f"training, {s['parameters'] / 1e6:.0f} M parameters, {s['batch']} x {s['seq']} tokens"


def compare(args, work, peers, versions):
    """The rows of one work."""
    own, others, failures = [], {name: [] for name, _ in peers}, {}
    for _ in range(args.rounds):
        report = run_switchyard(args, work)
        own.append(report["results"][-1])
        versions["Switchyard"], versions["machine"] = report["version"], report["machine"]
        for name, command in peers:
            if name in failures:
                continue
            result = run_peer(args, command, own[-1])
            if isinstance(result, str):
                failures[name] = result
                continue
            others[name].append(result)
            versions.update(result["versions"])
    seconds = seconds_of(args, own)
    peak = max(r["peak_tflops"] for r in own)
    stream = max(r["stream_gb_per_s"] for r in own)
    flops, size = own[0]["flops"], own[0]["bytes"]
    floor = max(flops / peak * 1e-12, size / stream * 1e-9)
    rows = []
    for name, _ in peers:
        row = [shape_text(own[0]), own[0]["direction"], time_text(seconds), f"{flops / seconds * 1e-12:.2f}",
               f"{100 * floor / seconds:.0f} %", name]
        if not others[name]:
            rows.append([*row, failures[name], "", ""])
            continue
        theirs = seconds_of(args, others[name])
        rows.append([*row, time_text(theirs), f"{flops / theirs * 1e-12:.2f}", f"{theirs / seconds:.2f}"])
        if "tokens_per_s" in own[0]:
            tokens = others[name][0]["tokens"]
            memory = [max(r["peak_resident_bytes"] for r in runs) / 2**20 for runs in (own, others[name])]
            rows.append(["tokens a second", "", f"{tokens / seconds:.0f}", "", "", name, f"{tokens / theirs:.0f}", "",
                         f"{theirs / seconds:.2f}"])
            rows.append(["peak resident memory", "", f"{memory[0]:.0f} MiB", "", "", name, f"{memory[1]:.0f} MiB", "",
                         f"{memory[0] / memory[1]:.2f}"])
    return rows, {"peak_tflops": peak, "stream_gb_per_s": stream, "own": own, "peers": others, "failures": failures}


def table_text(args, rows, numbers, versions):
    spans = [(min(n[k] for n in numbers), max(n[k] for n in numbers)) for k in ("peak_tflops", "stream_gb_per_s")]
    named = ", ".join(f"{k} {v}" for k, v in sorted(versions.items()) if k != "machine")
    head = (f"{datetime.date.today()}, {versions['machine']}, {os.cpu_count()} cores; peaks in these runs "
            f"{spans[0][0]:.2f} to {spans[0][1]:.2f} TFLOP/s (bf16), {spans[1][0]:.1f} to {spans[1][1]:.1f} GB/s "
            f"(copy). {named}. {'Fastest rounds' if args.best else 'Medians'} of {args.rounds} runs each, in turn.\n")
    table = ["| work | | Switchyard | TFLOP/s | of roofline | peer | peer takes | TFLOP/s | ratio |", "|---" * 9 + "|"]
    table += ["| " + " | ".join(row) + " |" for row in rows]
    return head + "\n" + "\n".join(table) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help=f"{', '.join(CASES)}; default all")
    parser.add_argument("--only", default="", help="only works with this text in their arguments (qwen3, fwd+bwd)")
    parser.add_argument("--switchyard", default=str(HERE.parents[1] / "build/release/switchyard"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--limit", type=float, default=900)
    parser.add_argument("--best", action="store_true")
    parser.add_argument("--markdown", help="a file for the table, printed in any case")
    parser.add_argument("--json", help="a file for all numbers")
    args = parser.parse_args()
    for case in args.cases:
        if case not in CASES:
            parser.error(f"no case {case}: expected some of {', '.join(CASES)}")
    rows, numbers, versions, text = [], [], {}, ""
    for case, work, peers in works():
        if args.cases and case not in args.cases or args.only not in " ".join(work):
            continue
        print(" ".join(work), file=sys.stderr, flush=True)
        more, numbers_here = compare(args, work, peers, versions)
        rows += more
        numbers.append(numbers_here)
        text = table_text(args, rows, numbers, versions)
        # After every work: a run of an hour that is stopped leaves what it has.
        if args.markdown:
            pathlib.Path(args.markdown).write_text(text)
        if args.json:
            pathlib.Path(args.json).write_text(json.dumps({"versions": versions, "works": numbers}, indent=1))
    if not rows:
        parser.error(f"nothing to run: no work has {args.only!r} in its arguments")
    print(text)


if __name__ == "__main__":
    main()

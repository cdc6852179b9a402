#!/usr/bin/env python3
"""Records the bits of what a program computes, and compares two records: a redesign must change none.

  scripts/bits.py PROGRAM OUT.json [--against OTHER.json] [--only GROUP,...] [--isa LIST]

The groups are train, generate, serve, verify and selftest. LIST names instruction sets (ref,avx2,avx512,...);
without it, all that this machine has. OUT.json gets a SHA-256 for each result, and what was not compared.
With --against, each name whose hash differs, or that one side lacks, is printed. Exit status: 0 alike, 1 not,
2 a run failed.

A record belongs to a machine: make both on the same one. Times are left out of every result. OUT.json says
how many seconds each group took.
"""

import argparse
import hashlib
import http.client
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"
SETS = ["ref", "avx2", "avx512", "avx512_bf16", "amx"]
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "2"]

# A model of each kind of layer. Where ../shared is missing, its models have a stand-in in the repository.
MODELS = [("deepseek3-tiny", None), ("deepseek32-tiny", None), ("gptoss-tiny", None),
          ("llama3-rope-tiny", None), ("qwen3moe-tiny", None), ("qwen3next-tiny", None),
          ("mixtral-tiny", "qwen2moe-tiny"), ("llama4-tiny", "llama4-unrotated-tiny")]
PROMPT = "(+ - * / ,)"  # bytes below 48: the smallest vocabulary of these models

# Three strategies of experts, FSDP, and experts that act as tensor parallelism; then another way of a step.
LAYOUTS = {
    "ring": "ranks=4 ici_expert_parallelism=4 use_ring_of_experts=true",
    "ragged_all_to_all": "ranks=4 ici_expert_parallelism=4",
    "fsdp": "ranks=4 ici_fsdp_parallelism=4",
    "dense_capacity": "ranks=8 ici_expert_parallelism=4 ici_fsdp_parallelism=2 sparse_matmul=false "
                      "capacity_factor=1.25",
    "experts_as_tensor": "ranks=8 ici_data_parallelism=2 ici_expert_parallelism=4 custom_mesh_and_rule=ep-tp "
                         "use_ring_of_experts=true expert_shard_attention_option=tp",
    "pipeline_muon": "ranks=4 ici_pipeline_parallelism=2 ici_fsdp_parallelism=2 opt_type=muon",
}


class Failed(Exception):
    pass


class Record:
    def __init__(self):
        self.hashes, self.not_compared = {}, []

    def add(self, name, result):
        """result: bytes, or what JSON can hold. Numbers keep all digits that tell them apart."""
        if name in self.hashes:
            raise Failed(f"two results have the name {name}")
        data = result if isinstance(result, bytes) else json.dumps(result, sort_keys=True).encode()
        self.hashes[name] = hashlib.sha256(data).hexdigest()

    def leave_out(self, what):
        if what not in self.not_compared:
            self.not_compared.append(what)
            print(f"not compared: {what}", file=sys.stderr)


def environment(isa):
    return {**os.environ, "SWITCHYARD_ISA": isa}


def run(command, isa, folder):
    """Standard output of a program that must end well."""
    done = subprocess.run([str(word) for word in command], env=environment(isa), cwd=folder,
                          capture_output=True)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).decode(errors="replace")[-4000:]
        raise Failed(f"SWITCHYARD_ISA={isa} {' '.join(map(str, command))}\n"
                     f"ended with {done.returncode}:\n{said}")
    return done.stdout


def fixed_text(path):
    """Writes 200,000 bytes of words. The README's run reads documents, which change by commits."""
    words = ("the a switchyard wagon track sorts tokens onto experts and of to in is that for with as it was "
             "on are by this which one each layer router weight sum load bias rank mesh step loss").split()
    state, text, size = 1, [], 0
    while size < 200_000:
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        word = words[(state >> 33) % len(words)] + (".\n" if (state >> 59) == 0 else " ")
        text.append(word)
        size += len(word)
    path.write_text("".join(text))


class Bits:
    def __init__(self, program, record, isa, folder):
        self.program, self.record, self.isa, self.folder = program, record, isa, folder

    # ---- train

    def trained(self, name, arguments):
        """Trains; records every number of each step that no clock made. Returns what the program printed."""
        run_name = name.replace("/", "-")
        out = run([self.program, "train", *arguments, "enable_tensorboard=false",
                   "base_output_directory=out", f"run_name={run_name}"], self.isa, self.folder)
        lines = (self.folder / "out" / run_name / "metrics.jsonl").read_text().splitlines()
        for i, line in enumerate(lines):
            numbers = {key: value for key, value in json.loads(line).items() if "perf/" not in key}
            self.record.add(f"{name}/line {i}", numbers)
        return out

    def train(self, at):
        # The reference kernels are far slower: they get fewer tokens, fewer words, fewer steps.
        slow = self.isa == "ref"
        small = [ROOT / "configs/examples/small-moe.yml", "data_path=text.txt"]
        fewer = ["per_device_batch_size=1", "max_target_length=64"] if slow else []
        out = self.trained(f"{at}/readme", [*small, "steps=3", "eval_interval=2", "eval_steps=1", *fewer])
        sample = re.search(rb"The model writes:\n(.*)\n\noutput: ", out, re.S)
        if sample is None:
            raise Failed("train printed no sample between 'The model writes:' and 'output: '")
        self.record.add(f"{at}/readme/sample", sample[1])
        for name, layout in LAYOUTS.items():
            self.trained(f"{at}/layouts/{name}", [
                *small, "dtype=float32", "base_num_decoder_layers=3", "per_device_batch_size=1",
                f"max_target_length={16 if slow else 64}", "eval_interval=-1", "steps=3",
                *layout.split()])
        pull_request = next(iter(sorted(SHARED.glob("reference/000_*.txt"))), None)
        if pull_request is None:
            self.record.leave_out("train: the seed's five rows (no ../shared/reference/000_*.txt)")
            return
        command, rows = five_rows(pull_request.read_text())
        size = ["max_target_length=128", "steps=6"]
        if slow:
            size = ["max_target_length=16", "vocab_size=2048", "steps=2"]
        base = ROOT / "configs/base.yml"
        for i, row in enumerate(rows):
            self.trained(f"{at}/row {i + 1}", [base, *command, *row.split(), "ranks=8", *size])

    # ---- generate and serve

    def models(self):
        """Name, folder, keys: of the golden models, and of one that has a prediction layer, for drafts."""
        found = []
        for name, stand_in in MODELS:
            folder = ROOT / "tests/golden/hf" / name
            if not folder.is_dir():
                folder = SHARED / "golden/hf" / name
            if not folder.is_dir():
                self.record.leave_out(f"texts of {name} (no ../shared/golden/hf/{name}); {stand_in} instead")
                name, folder = stand_in, ROOT / "tests/golden/hf" / stand_in
            found.append((name, folder, ["tokenizer_type=byte"]))
        drafting = self.folder / "out" / "drafting"
        if not drafting.is_dir():
            run([self.program, "train", "decoder_block=mixtral", "base_emb_dim=16", "base_num_query_heads=2",
                 "base_num_kv_heads=2", "head_dim=8", "base_mlp_dim=16", "base_num_decoder_layers=2",
                 "num_experts=4", "num_experts_per_tok=2", "mtp_num_layers=1", "vocab_size=257",
                 "dataset_type=text", "data_path=text.txt", "tokenizer_type=byte", "max_target_length=24",
                 "per_device_batch_size=4",
                 "steps=60", "learning_rate=0.03", "dtype=float32", "enable_checkpointing=true",
                 "base_output_directory=out", "run_name=drafting"], self.isa, self.folder)
        return found + [("drafting", drafting, ["mtp_draft=true"])]

    def generate(self, at):
        mpirun = shutil.which("mpirun") is not None
        if not mpirun:
            self.record.leave_out("generate: two processes (no mpirun)")
        sampled = ["decode_sampling_strategy=composite", "decode_sampling_temperature=0.9",
                   "decode_sampling_nucleus_p=0.95", "decode_sampling_top_k=40", "init_weights_seed=7"]
        for name, folder, keys in self.models():
            command = [self.program, "generate", folder, *keys, f"prompt={PROMPT}", "max_target_length=40",
                       "return_log_prob=true", "--json", "made.json"]
            ways = {"one row": [], "one row, sampled": sampled, "four rows": ["per_device_batch_size=4"],
                    "four rows, sampled": ["per_device_batch_size=4", *sampled]}
            if name == "drafting":
                ways["no drafts"] = ["mtp_draft=false"]
            for way, more in ways.items():
                self.made(f"{at}/{name}/{way}", [*command, *more])
            if mpirun:
                # Few tokens: where other programs want the cores, each message waits its turn.
                layout = ["ici_expert_parallelism=2", "max_target_length=20"]
                for way, more in {"two processes": [], "two processes, sampled": sampled}.items():
                    self.made(f"{at}/{name}/{way}", [*MPIRUN, *command, *layout, *more])

    def made(self, name, command):
        (self.folder / "made.json").unlink(missing_ok=True)
        run(command, self.isa, self.folder)
        made = json.loads((self.folder / "made.json").read_text())
        kept = ("prompt_tokens", "results", "decode_steps", "drafted_tokens", "accepted_drafts")
        self.record.add(name, {key: made[key] for key in kept})

    def serve(self, at):
        requests = {
            "greedy": {"temperature": 0},
            "sampled": {"temperature": 1, "top_p": 0.95, "seed": 7},
            "two texts": {"temperature": 1, "n": 2, "seed": 11},
            "log probabilities": {"temperature": 0, "logprobs": 5},
        }
        for name, folder, keys in self.models():
            where = self.folder / "where.json"
            where.unlink(missing_ok=True)
            words = [self.program, "serve", folder, *keys, "max_target_length=64", "--port", "0", "--json",
                     where]
            with open(self.folder / "server.txt", "w+b") as said:
                server = subprocess.Popen([str(word) for word in words], env=environment(self.isa),
                                          cwd=self.folder, stdout=said, stderr=said)
                try:
                    while not where.exists() and server.poll() is None:
                        time.sleep(0.02)
                    for what, request in requests.items() if server.poll() is None else []:
                        answer = self.answer(json.loads(where.read_text())["port"],
                                             {"prompt": PROMPT, "max_tokens": 24, **request})
                        kept = {key: answer[key] for key in ("choices", "usage")}
                        self.record.add(f"{at}/{name}/{what}", kept)
                    server.terminate()
                    server.wait(60)
                finally:
                    if server.poll() is None:
                        server.kill()
                        server.wait()
                if server.returncode != 0:
                    said.seek(0)
                    raise Failed(f"SWITCHYARD_ISA={self.isa} {' '.join(map(str, words))}\nended with "
                                 f"{server.returncode}:\n{said.read().decode(errors='replace')[-4000:]}")

    @staticmethod
    def answer(port, request):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        kind = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/completions", json.dumps(request), kind)
        answer = connection.getresponse()
        body = answer.read().decode()
        connection.close()
        if answer.status != 200:
            raise Failed(f"serve answered {request} with {answer.status}: {body}")
        return json.loads(body)

    # ---- verify and selftest

    def verify(self, at):
        cases = golden_cases(ROOT / "tests/golden", "tests")
        if (SHARED / "golden").is_dir():
            cases.update(golden_cases(SHARED / "golden", "shared"))
        else:
            self.record.leave_out("verify: the goldens of ../shared (no ../shared/golden)")
        run([self.program, "verify", *cases.values(), "--json", "verified.json"], self.isa, self.folder)
        verified = json.loads((self.folder / "verified.json").read_text())["cases"]
        by_path = {case["case"]: case for case in verified}
        for name, path in cases.items():
            case = by_path[str(path)]
            del case["case"]  # a path of this machine
            self.record.add(f"{at}/{name}", case)

    def selftest(self, at):
        if b"--bits" not in run([self.program, "selftest", "--help"], self.isa, self.folder):
            self.record.leave_out("selftest: this program has no selftest --bits")
            return
        run([self.program, "selftest", "threads=2", "--bits", "rows.txt"], self.isa, self.folder)
        seen = {}
        for line in (self.folder / "rows.txt").read_text().splitlines():
            found, _, what = line.partition(" ")
            seen[what] = seen.get(what, 0) + 1  # cases may have one name: they are told apart by their order
            self.record.hashes[f"{at}/{what}" + (f" #{seen[what]}" if seen[what] > 1 else "")] = found


def five_rows(text):
    """The keys of the pull request's command, and for each row of its table those that replace some."""
    command = re.search(r"^python3 -m maxtext\S+ \S+ \\\n(.*?)\n\n", text, re.S | re.M)
    rows = re.findall(r"^\| (?:Sparse|Dense) \|.*\| ([^|]*=[^|]*) \|$", text, re.M)
    if command is None or len(rows) != 5:
        raise Failed("../shared/reference/000_*.txt: expected a command and a table of five rows")
    keys = command[1].replace("\\\n", " ").split()
    # These keys name places on the machine that ran the rows, or print all settings.
    places = ("base_output_directory=", "run_name=", "dataset_path=", "log_config=")
    return [key for key in keys if not key.startswith(places)], rows


def golden_cases(golden, label):
    """Name and path of all that `switchyard verify` takes."""
    paths = [path for folder in ("hf", "quantized", "quantized/hf") for path in golden.glob(f"{folder}/*")
             if (path / "config.json").exists()]
    paths += golden.glob("maxtext*_moe/*.safetensors")
    # The folder of runs also has models' settings and notes, which `verify` does not take.
    runs = golden.glob("maxtext*_train/*.json")
    paths += [path for path in runs if "run" in json.loads(path.read_text())]
    paths += [path for folder in ("gguf", "quantized/gguf") for path in golden.glob(f"{folder}/*/*.gguf")]
    return {f"{label}/{path.relative_to(golden)}": path for path in sorted(paths)}


def sets_of_machine(program, folder):
    """Its name and its sets, least first: the program caps what is asked for, and names the best that is."""
    out = run([program, "selftest", "rope_tables"], "amx", folder).decode()
    best = re.search(r"\((\w+)\)", out.splitlines()[0])
    if best is None or best[1] not in SETS:
        raise Failed(f"selftest's first line names no instruction set: {out.splitlines()[0]}")
    return out.splitlines()[0].split(", ")[0], SETS[:SETS.index(best[1]) + 1]


def compare(ours, theirs, groups, sets):
    """Prints the differences; returns how many. Groups and sets that were not asked for are none."""
    def asked(name):
        group, isa = name.split("/")[:2]
        return group in groups and isa in sets

    left_out = sum(not asked(name) for name in theirs)
    if left_out:
        print(f"not compared: {left_out} results of the other record (group or set not asked for)")
    names = sorted(name for name in {*ours, *theirs} if asked(name))
    differences = 0
    for name in names:
        if ours.get(name) != theirs.get(name):
            differences += 1
            how = "differs"
            if name not in theirs:
                how = "not in the other record"
            elif name not in ours:
                how = "only in the other record"
            print(f"{how}: {name}")
    print(f"{differences} of {len(names)} results differ")
    return differences


def main():
    groups = ["train", "generate", "serve", "verify", "selftest"]
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--against", type=pathlib.Path)
    parser.add_argument("--only", default=",".join(groups))
    parser.add_argument("--isa")
    arguments = parser.parse_args()
    chosen = arguments.only.split(",")
    for group in chosen:
        if group not in groups:
            parser.error(f"--only: no group {group}; they are {', '.join(groups)}")
    theirs = json.loads(arguments.against.read_text()) if arguments.against else None
    program = arguments.program.resolve()
    if not os.access(program, os.X_OK):
        parser.error(f"{arguments.program}: expected a program")
    record, seconds = Record(), {}
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bits.") as name:
        machine, has = sets_of_machine(program, name)
        known = [*SETS, "amx_emulated"]  # where AVX512-BF16 is, AMX can be emulated: only when asked for
        sets = arguments.isa.split(",") if arguments.isa else has
        for isa in [isa for isa in sets if isa not in known]:
            parser.error(f"--isa: no instruction set {isa}; they are {', '.join(known)}")
        possible = [*has, *(["amx_emulated"] if "avx512_bf16" in has else [])]
        for isa in known:
            if isa not in possible:
                record.leave_out(f"{isa}: this machine lacks it")
            elif isa not in sets:
                record.leave_out(f"{isa}: not asked for (--isa)")
        for group in [group for group in groups if group not in chosen]:
            record.leave_out(f"{group}: not asked for (--only)")
        sets = [isa for isa in sets if isa in possible]
        for isa in sets:
            folder = pathlib.Path(name) / isa
            folder.mkdir()
            fixed_text(folder / "text.txt")
            for group in [group for group in groups if group in chosen]:
                start = time.monotonic()
                getattr(Bits(program, record, isa, folder), group)(f"{group}/{isa}")
                seconds[f"{group}/{isa}"] = round(time.monotonic() - start, 1)
                print(f"{group}/{isa}: {seconds[f'{group}/{isa}']} s", file=sys.stderr)
    result = {"machine": machine, "not_compared": record.not_compared, "seconds": seconds,
              "hashes": dict(sorted(record.hashes.items()))}
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{len(record.hashes)} results in {time.monotonic() - begin:.0f} s")
    if theirs is None:
        return 0
    if theirs["machine"] != machine:
        print(f"the other record is of another machine: {theirs['machine']}, this one is {machine}")
    for what in theirs["not_compared"]:
        print(f"not compared in the other record: {what}")
    return 1 if compare(record.hashes, theirs["hashes"], chosen, sets) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as error:
        print(f"bits.py: {error}", file=sys.stderr)
        sys.exit(2)

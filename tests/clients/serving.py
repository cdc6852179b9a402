"""A tiny model of bytes, and `switchyard serve` as a child process. Needs Python's own library only."""

import json
import pathlib
import signal
import subprocess
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TEMPLATE = HERE / "chat_template.jinja"
PROGRAM = ROOT / "build/release/switchyard"
END_OF_TEXT = 256  # of the byte tokenizer: the others are the bytes themselves
START_SECONDS = 120

# Two MoE layers with some thousand float32 weights, as tests/cli/child.h has them.
TINY_MODEL = ["decoder_block=mixtral", "base_emb_dim=16", "base_num_query_heads=2", "base_num_kv_heads=2", "head_dim=8",
              "base_mlp_dim=16", "base_num_decoder_layers=2", "num_experts=4", "num_experts_per_tok=2",
              "vocab_size=257", "max_target_length=24", "per_device_batch_size=2", "steps=1", "learning_rate=0.01",
              "dtype=float32", "dataset_type=text", "tokenizer_type=byte", "enable_checkpointing=true",
              "base_output_directory=out", "run_name=tiny"]


def make_tiny_model(program, folder):
    """Trains a model of bytes for one step; returns its folder, whose name `tiny` is the model's name."""
    folder = pathlib.Path(folder)
    (folder / "text.txt").write_text("a" * 400 + " and some other letters, too. ")
    subprocess.run([str(program), "train", *TINY_MODEL, "data_path=text.txt"], cwd=folder, check=True,
                   capture_output=True, timeout=START_SECONDS)
    return folder / "out/tiny"


class Server:
    """`switchyard serve` on a free port from its construction to stop(). `log` is what it writes on standard error."""

    count = 0

    def __init__(self, program, model, folder, *arguments, prefix=()):
        Server.count += 1
        where = pathlib.Path(folder) / f"where{Server.count}.json"
        where.unlink(missing_ok=True)
        self.log = pathlib.Path(folder) / f"serve{Server.count}.log"
        command = [*prefix, str(program), "serve", str(model), "--port", "0", "--json", str(where), *arguments]
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        end = time.monotonic() + START_SECONDS
        while not where.exists():
            if self.process.poll() is not None or time.monotonic() > end:
                self.process.kill()
                raise RuntimeError(f"{' '.join(command)}: {self.log.read_text()[-2000:]}")
            time.sleep(0.02)
        told = json.loads(where.read_text())
        self.host, self.port, self.model = told["host"], told["port"], told["model"]
        self.url = f"http://{self.host}:{self.port}"

    def resident_bytes(self):
        for line in pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise RuntimeError("the server has ended")

    def metric(self, name):
        """The value of a line of /metrics, 0 where there is none. `name` has its labels."""
        with urllib.request.urlopen(self.url + "/metrics", timeout=30) as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith(name + " "):
                    return float(line.split()[-1])
        return 0.0

    def stop(self, seconds=60):
        """Ends it as SIGTERM does; returns its exit status, or None where it had to be killed."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

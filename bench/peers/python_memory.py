"""Memory of a process that opens and closes a tiny engine a thousand times, and that runs many forwards.

    PYTHONPATH=build/release/python python3 bench/peers/python_memory.py

Resident memory in the second and the last tenth of the rounds; status 1 where it grew by more than 1 %.
"""

import pathlib
import statistics
import sys

import numpy as np
import switchyard

MODEL = pathlib.Path(__file__).resolve().parents[2] / "tests/golden/hf/qwen3moe-tiny"


def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4 / 1024


def grown(name, rounds, body):
    sizes = []
    for _ in range(rounds):
        body()
        sizes.append(resident())
    tenth = rounds // 10  # the first one warms up; free() gives pages back now and then, so medians of many
    before, after = statistics.median(sizes[tenth : 2 * tenth]), statistics.median(sizes[-tenth:])
    print(f"{name}: {rounds} rounds, {before:.1f} MiB in the second tenth, {after:.1f} MiB in the last, {after / before:.4f}")
    return after / before > 1.01


def open_and_close():
    with switchyard.Engine.open(MODEL, tokenizer_type="byte", ranks=2, ici_expert_parallelism=2) as engine:
        engine.forward([[1, 2, 3]])
        engine.generate("ab", max_tokens=2)
        [np.asarray(shard) for shard in engine.parameters["head"].shards]


def main():
    failed = grown("opens and closes", 1000, open_and_close)
    with switchyard.Engine.open(MODEL, tokenizer_type="byte", per_device_batch_size=4, steps=100000) as engine:
        rows = np.arange(4 * 64).reshape(4, 64)
        failed |= grown("forwards", 10000, lambda: engine.forward(rows).max())
        failed |= grown("views", 10000, lambda: [np.asarray(value).shape for value in engine.parameters.values()])
        failed |= grown("train steps", 1000, lambda: engine.train_step(rows))
        failed |= grown("texts", 1000, lambda: engine.generate(["ab", "cd"], max_tokens=4))
    sys.exit(failed)


if __name__ == "__main__":
    main()

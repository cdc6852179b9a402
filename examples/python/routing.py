"""Which experts the tokens of a text go to, layer by layer, from the metrics of a training run.

A step with a learning rate of 0 changes no weights, so its loads are those of the model as it is.
"""

import pathlib
import tempfile

import numpy as np
import switchyard

MODEL = pathlib.Path(__file__).resolve().parents[2] / "tests/golden/hf/qwen3moe-tiny"


def loads(engine: switchyard.Engine, texts: list[str], steps: int) -> np.ndarray:
    """Rows that went to each expert [layers, experts], of `steps` batches of the texts."""
    experts = engine.settings["num_experts"]
    rows: list[list[list[float]]] = []

    def add(metrics: dict[str, float]) -> None:
        layers = [name.split("/")[1] for name in metrics if name.endswith("/rows/expert_0")]
        rows.append([[metrics[f"moe/{layer}/rows/expert_{e}"] for e in range(experts)] for layer in layers])

    engine.train(data=texts, steps=steps, callback=add)
    total: np.ndarray = np.array(rows).sum(axis=0)
    return total


with tempfile.TemporaryDirectory() as folder:
    run = {
        "base_output_directory": folder,
        "run_name": "routing",
        "learning_rate": 0,
        "add_bos": False,
        "add_eos": False,
    }
    rows = {"tokenizer_type": "byte", "per_device_batch_size": 2, "max_target_length": 64}
    with switchyard.Engine.open(MODEL, {**run, **rows}) as engine:
        found = loads(engine, ["The quick brown fox jumps over the lazy dog. " * 8] * 8, steps=4)
    for layer, row in enumerate(found):
        bars = " ".join(f"{int(count):4d}" for count in row)
        print(f"layer {layer}: {bars}   busiest over mean {row.max() / row.mean():.2f}")
    assert found.shape == (2, 8) and (found.sum(axis=1) == 4 * 2 * 64 * 2).all()  # two experts a token

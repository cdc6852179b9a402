"""Trains an adapter on texts, uses it beside its base, and gives it to other programs as PEFT's files."""

import pathlib
import tempfile

import switchyard

BASE = pathlib.Path(__file__).resolve().parents[2] / "tests/golden/hf/qwen3moe-tiny"
TEXTS = ["the night train to the north is late. " * 4] * 50

with tempfile.TemporaryDirectory() as folder:
    run = pathlib.Path(folder, "late")
    data = {"tokenizer_type": "byte", "add_bos": False, "add_eos": False, "per_device_batch_size": 4}
    files = {"base_output_directory": folder, "run_name": run.name, "enable_checkpointing": True}
    keys = {**data, **files, "max_target_length": 64, "steps": 60}
    with switchyard.Engine.open(BASE, keys, lora_rank=8, learning_rate=0.02) as engine:
        losses: list[float] = []
        engine.train(data=TEXTS, callback=lambda metrics: losses.append(metrics["learning/loss"]))
    print(f"loss {losses[0]:.2f} at first, {losses[-1]:.2f} after {len(losses)} steps")
    assert losses[-1] < losses[0] / 4

    with switchyard.Engine.open(BASE, tokenizer_type="byte") as base:
        [before] = base.score(["the night train"])
    with switchyard.Engine.open(BASE, tokenizer_type="byte", adapter=run) as adapted:
        [after] = adapted.score(["the night train"])
        print("the night train" + adapted.generate("the night train", max_tokens=24).text)
    print(f"log-probability of the text: {before.sum:.1f} without the adapter, {after.sum:.1f} with it")
    assert after.sum > before.sum / 2

    switchyard.convert(run, pathlib.Path(folder, "peft"), export_adapter=True)
    print(sorted(path.name for path in pathlib.Path(folder, "peft").iterdir()))

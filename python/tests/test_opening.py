"""How far an opening is, what was opened, and a bug in a rank."""

import threading

import pytest

import switchyard
from conftest import open_tiny, run_script


def test_progress(mesh):
    told = []

    def progress(read, all):
        assert threading.current_thread() is threading.main_thread()
        told.append((read, all))

    with open_tiny(progress=progress, **mesh) as engine:
        weights = sum(parameter.numpy().nbytes for parameter in engine.parameters.values())
    assert told == sorted(told) and told[-1] == (weights, weights)
    told.clear()
    with switchyard.Engine.open(model_name="deepseek3-tiny", progress=progress):
        assert told == sorted(told) and told[-1][0] == told[-1][1] > 0  # random weights are drawn


def test_progress_in_another_thread():
    told = []
    thread = threading.Thread(target=lambda: open_tiny(progress=lambda *sizes: told.append(threading.get_ident())))
    thread.start()
    thread.join()
    assert set(told) == {thread.ident}


def test_progress_that_throws(mesh):
    def progress(read, all):
        raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        open_tiny(progress=progress, **mesh)
    with pytest.raises(TypeError, match="progress: expected a function of two numbers, got bool"):
        open_tiny(progress=True)


def test_what_was_opened():
    with open_tiny(ranks=2, ici_expert_parallelism=2, per_device_batch_size=1) as engine:
        assert engine.mesh["expert"] == 2 and engine.mesh["data"] == 1 and engine.device == "cpu"
        model = engine.model
        assert (model.layers, model.experts, model.vocab, model.emb) == (2, 8, 256, 64)
        before = engine.memory
        assert 0 < before.in_use <= before.peak
        assert repr(engine) == (
            f"Engine(qwen3moe-tiny, 8 experts, 2 ranks expert=2, cpu, {before.in_use / 2**20:.1f} MiB)"
        )
        engine.train_step([[1, 2, 3, 4]] * 2)
        assert engine.memory.in_use > before.in_use  # the optimizer's state
    assert repr(engine) == "Engine(qwen3moe-tiny, closed)"
    with pytest.raises(switchyard.UsageError, match="memory: the engine is closed"):
        engine.memory


def test_a_bug_in_a_rank_ends_its_engine_alone():
    status, out, err = run_script("""
os.environ["SWITCHYARD_FAULT"] = "kind=check,rank=1,step=0,phase=dispatch"
broken = open_tiny(ranks=2, ici_expert_parallelism=2, per_device_batch_size=1)
del os.environ["SWITCHYARD_FAULT"]
for call in (lambda: broken.train_step([[1, 2, 3, 4]] * 2), lambda: broken.forward([[1]]), lambda: broken.generate("a")):
    try:
        call()
    except switchyard.InternalError as error:
        print(str(error).count("\\n"), "rank 1: " in str(error))
broken.close()
print(open_tiny().forward([[1, 2]]).shape)
""")
    assert (status, out, err) == (0, "0 True\n" * 3 + "(1, 2, 256)\n", "")

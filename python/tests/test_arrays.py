"""Arrays in and out: which are taken, and which memory they share."""

import gc

import numpy as np
import pytest

import switchyard
from conftest import MESHES, open_tiny

TOKENS = [[1, 5, 3, 1], [2, 7, 1, 8]]


def test_tokens_of_any_kind(engine):
    logits = engine.forward(TOKENS)
    wide = np.zeros((2, 8), np.int64)
    wide[:, ::2] = TOKENS
    for tokens in (
        np.array(TOKENS, np.int32),
        np.array(TOKENS, np.int64),
        np.asfortranarray(TOKENS),
        wide[:, ::2],
        memoryview(np.array(TOKENS, np.int32)),
        tuple(map(tuple, TOKENS)),
    ):
        assert (engine.forward(tokens) == logits).all()
    locked = np.array(TOKENS, np.int32)
    locked.flags.writeable = False
    assert (engine.forward(locked) == logits).all()


def test_torch_both_ways(engine):
    torch = pytest.importorskip("torch")
    assert (engine.forward(torch.tensor(TOKENS)) == engine.forward(TOKENS)).all()
    parameter = engine.parameters["layers.0.moe.wi_0"]
    tensor = torch.from_dlpack(parameter)
    assert tensor.data_ptr() == np.asarray(parameter).ctypes.data
    with open_tiny(weight_dtype="bfloat16") as other:
        half = other.parameters["layers.0.moe.wi_0"]
        tensor = torch.from_dlpack(half)
        assert tensor.dtype == torch.bfloat16 and tensor.data_ptr() == half.bits().ctypes.data
        assert (tensor.float().numpy() == half.numpy()).all()


@pytest.mark.parametrize(
    "tokens, kind, message",
    [
        ([[1.0, 2.0]], TypeError, "tokens: expected int32 or int64, got float64"),
        (np.ones((1, 2), np.uint8), TypeError, "tokens: expected int32 or int64, got uint8"),
        (np.ones((1, 2), ">i4"), TypeError, "tokens: expected this machine's byte order, got >i4"),
        ([[1, 2], [3]], switchyard.UsageError, "tokens: expected rows of equal length"),
        ([1, 2], switchyard.UsageError, "tokens: expected an array [rows, length], got one of shape [2]"),
        (
            np.zeros((0, 4), np.int32),
            switchyard.UsageError,
            "tokens: expected at least one token, got an array of shape [0, 4]",
        ),
        ([[1, 256]], switchyard.UsageError, "[engine] forward: token 256 is outside the vocabulary of 256"),
        ([[1, -1]], switchyard.UsageError, "[engine] forward: token -1 is outside the vocabulary of 256"),
        ([[2**32 + 1]], switchyard.UsageError, "[engine] forward: token 4294967297 is outside the vocabulary of 256"),
        ("ab", TypeError, "tokens: expected int32 or int64, got <U2"),
        ([[None]], switchyard.UsageError, "tokens: expected integers in rows of equal length"),
    ],
    ids=str,
)
def test_refused_tokens_are_one_line(engine, tokens, kind, message):
    with pytest.raises(kind) as raised:
        engine.forward(tokens)
    assert str(raised.value).startswith(message) and "\n" not in str(raised.value)
    assert engine.forward([[1]]).shape == (1, 1, 256)  # the engine goes on


def test_views_share_memory_and_are_read_only(engine):
    parameter = engine.parameters["layers.1.moe.gate"]
    one, other = np.asarray(parameter), np.from_dlpack(parameter)
    assert one.ctypes.data == other.ctypes.data and one.ctypes.data % 64 == 0
    assert not one.flags.writeable and not other.flags.writeable
    assert (one == parameter.numpy()).all() and parameter.numpy().flags.writeable
    assert one.shape == parameter.shape == (64, 8) and parameter.dtype == "float32"
    assert np.asarray(parameter, dtype=np.float64).dtype == np.float64


def test_views_see_training_and_outlive_the_engine():
    engine = open_tiny(per_device_batch_size=1, learning_rate=0.01, warmup_steps_fraction=0, steps=2)
    view = np.asarray(engine.parameters["head"])
    before = view.copy()
    engine.train_step([[1, 2, 3, 4]])
    assert (view != before).any()
    after = engine.parameters["head"].numpy()
    engine.close()
    del engine
    gc.collect()
    open_tiny().close()  # would take memory that was freed
    assert (view == after).all()


def test_shards_of_a_split_parameter():
    with open_tiny(**MESHES["2 ranks"]) as engine:
        parameter = engine.parameters["layers.0.moe.wi_0"]
        assert parameter.axes[0] == "expert" and [shard.rank for shard in parameter.shards] == [0, 1]
        whole = parameter.numpy()
        for shard in parameter.shards:
            place = tuple(slice(begin, begin + size) for begin, size in zip(shard.offset, shard.shape))
            assert (np.asarray(shard) == whole[place]).all()
        with pytest.raises(BufferError, match=r"split \(dim 0 over expert\): \.numpy\(\) copies .*\.shards"):
            np.asarray(parameter)
        with open_tiny() as alone:
            assert (np.asarray(alone.parameters["layers.0.moe.wi_0"]) == whole).all()


def test_bfloat16():
    with open_tiny(weight_dtype="bfloat16") as engine:
        parameter = engine.parameters["layers.0.moe.wi_0"]
        assert parameter.dtype == "bfloat16" and parameter.bits().dtype == np.uint16
        wide = (parameter.bits().astype(np.uint32) << 16).view(np.float32)
        assert (wide == parameter.numpy()).all()
        try:
            import ml_dtypes
        except ImportError:
            with pytest.raises(TypeError, match=r"ml_dtypes.*\.numpy\(\).*\.bits\(\)"):
                np.asarray(parameter)
        else:
            array = np.asarray(parameter)
            assert array.dtype == ml_dtypes.bfloat16 and array.ctypes.data == parameter.bits().ctypes.data


def test_packed_weights_are_bytes():
    with open_tiny(weight_format="int8", weight_dtype="bfloat16") as engine:
        packed = [one for one in engine.parameters.values() if one.dtype not in ("float32", "bfloat16")]
        assert packed and packed[0].bits().dtype == np.uint8
        with pytest.raises(BufferError, match="packed weights .*bits"):
            np.asarray(packed[0])
        with pytest.raises(switchyard.UsageError, match="is packed"):
            packed[0].numpy()


def test_a_gpus_weights_are_copied_alone():
    with open_tiny() as engine:
        values = engine.parameters["head"].numpy()
    with open_tiny(device="cuda_emulated") as engine:
        parameter = engine.parameters["head"]
        assert (parameter.numpy() == values).all()
        for view in (np.asarray, np.from_dlpack, lambda one: one.bits()):
            with pytest.raises(TypeError, match=r"in a GPU's memory: \.numpy\(\) of the parameter copies them"):
                view(parameter)


def test_logits_are_the_callers(engine):
    logits = engine.forward(TOKENS)
    logits += 1
    engine.close()
    assert logits.shape == (2, 4, 256) and np.isfinite(logits).all()

"""Arguments as the engine takes them: settings as words of a command line, tokens as arrays of integers."""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from . import _native
from ._errors import UsageError

# With one of these load_parameters_path only fills a model that is described otherwise.
_MODEL_KEYS = ("model_name", "decoder_block", "base_config", "base_emb_dim", "base_num_decoder_layers", "num_experts")


def _value_text(key: str, value: Any) -> str:
    """A value as the command line spells it; lists and mappings in YAML's flow form."""
    if value is None:
        return "None"
    if isinstance(value, (bool, np.bool_)):
        return "true" if value else "false"
    if isinstance(value, (int, float, str)):
        return str(value)
    if isinstance(value, os.PathLike):
        return str(os.fspath(value))
    if isinstance(value, (np.integer, np.floating)):
        return str(value.item())
    if isinstance(value, (Mapping, Sequence)) and not isinstance(value, (bytes, bytearray)):
        try:
            return json.dumps(value if isinstance(value, Mapping) else list(value))
        except TypeError:
            pass
    raise TypeError(
        f"{key}: expected a bool, int, float, str, path, None, or lists and mappings of these, "
        f"got {type(value).__name__}"
    )


def words_of(model: Any, config: Any, keys: Mapping[str, Any]) -> list[str]:
    """The command line of Engine.open's arguments."""
    for name, value in (("model", model), ("config", config)):
        if value is not None and not isinstance(value, (str, os.PathLike, *([Mapping] if name == "config" else []))):
            more = " or a mapping" if name == "config" else ""
            raise TypeError(f"{name}: expected a path{more}, got {type(value).__name__}")
    first = None if model is None else os.fspath(model)
    settings = dict(keys)
    if isinstance(config, Mapping):
        settings = {**config, **keys}
    elif config is not None:
        if first is not None:
            raise UsageError(f"config={os.fspath(config)}: expected a mapping beside a model, got a file")
        first = os.fspath(config)
    for key in settings:
        if not isinstance(key, str):
            raise TypeError(f"config: expected keys that are texts, got {key!r}")
    weights = settings.get("load_parameters_path")
    if first is None and weights and not any(settings.get(key) is not None for key in _MODEL_KEYS):
        first = os.fspath(weights) if isinstance(weights, (str, os.PathLike)) else str(weights)
        del settings["load_parameters_path"]
    words = [] if first is None else [first]
    return words + [f"{key}={_value_text(key, value)}" for key, value in settings.items()]


def tokens_of(name: str, values: Any, dims: int) -> np.ndarray:
    """`values` as a contiguous array of int32 or int64 with `dims` dims, copied only where it is none."""
    try:
        if hasattr(values, "__dlpack__") and not isinstance(values, np.ndarray):
            array = np.from_dlpack(values)
        else:
            array = np.asarray(values)
    except (TypeError, BufferError, RuntimeError) as error:
        raise TypeError(
            f"{name}: expected integers in the CPU's memory, got {type(values).__name__} "
            f"({str(error).splitlines()[0]})"
        ) from None
    except ValueError:
        raise UsageError(f"{name}: expected rows of equal length") from None
    if array.size == 0:
        raise UsageError(f"{name}: expected at least one token, got an array of shape {list(array.shape)}")
    if array.dtype == object:
        raise UsageError(f"{name}: expected integers in rows of equal length, got other objects")
    if array.dtype.kind != "i" or array.dtype.itemsize not in (4, 8):
        raise TypeError(f"{name}: expected int32 or int64, got {array.dtype}")
    if not array.dtype.isnative:
        raise TypeError(f"{name}: expected this machine's byte order, got {array.dtype.str}")
    if array.ndim != dims:
        shape = "[rows, length]" if dims == 2 else "[length]"
        raise UsageError(f"{name}: expected an array {shape}, got one of shape {list(array.shape)}")
    return np.ascontiguousarray(array)


def _number(name: str, value: Any, whole: bool) -> int | float:
    try:
        return operator.index(value) if whole else float(value)
    except (TypeError, ValueError):
        expected = "an integer" if whole else "a number"
        raise TypeError(f"{name}: expected {expected}, got {type(value).__name__}") from None


class Sampling(TypedDict, total=False):
    """How generate(), stream() and chat() take tokens; `serve` has the same names and meanings."""

    max_tokens: int  # new ones at most; 128
    temperature: float  # 0: the most probable token
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    seed: int
    stop: str | Sequence[str]  # a text ends before one of these
    ends: Sequence[int]  # ids that end a text
    ends_by_model: bool  # True: the model's own ends end a text
    schema: Any  # a text is JSON of this JSON schema
    logprobs: bool  # return the tokens' log-probabilities


class TextOptions(Sampling, total=False):
    """What generate() and stream() take."""

    experts: bool  # return the tokens' experts; the engine is opened with return_routed_experts=True
    adapter: str | None  # of Engine.adapters, which reads and makes the text


_WHOLE = ("max_tokens", "top_k", "seed")
_NUMBERS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")


def sampling_of(options: Mapping[str, Any]) -> _native.Sampling:
    """The engine's Sampling. Options that are left out have its defaults."""
    sampling = _native.Sampling()
    for name, value in options.items():
        if name not in TextOptions.__annotations__:
            raise TypeError(f"{name}: expected one of {', '.join(TextOptions.__annotations__)}")
        if name in _WHOLE or name in _NUMBERS:
            number = _number(name, value, name in _WHOLE)
            most = 2**32 - 1 if name == "seed" else 2**63 - 1
            if name in _WHOLE and not 0 <= number <= most:
                raise UsageError(f"{name}={number}: expected 0 to {most}", name, str(number), f"0 to {most}")
            setattr(sampling, name, number)
    stop = options.get("stop", ())
    texts = [stop] if isinstance(stop, str) else list(stop)
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"stop: expected texts, got {type(text).__name__}")
    sampling.stop = texts
    # An id beyond the type of ids ends no text, as one beyond the vocabulary does not.
    ends = [_number("ends", one, True) for one in options.get("ends", ())]
    sampling.ends = [int(token) for token in ends if 0 <= token < 2**31]
    sampling.ends_by_model = bool(options.get("ends_by_model", True))
    sampling.log_probs = bool(options.get("logprobs", False))
    sampling.experts = bool(options.get("experts", False))
    adapter = options.get("adapter")
    if adapter is not None:
        if not isinstance(adapter, str):
            raise TypeError(f"adapter: expected a name, got {type(adapter).__name__}")
        sampling.adapter = adapter
    schema = options.get("schema")
    if schema is not None:
        sampling.json_schema = schema if isinstance(schema, str) else json.dumps(schema)
    return sampling


def floats_of(name: str, values: Any, shape: Sequence[int]) -> np.ndarray:
    """`values` as a contiguous array of float32 of this shape, copied only where it is none."""
    try:
        if hasattr(values, "__dlpack__") and not isinstance(values, np.ndarray) and not hasattr(values, "__array__"):
            values = np.from_dlpack(values)
        array = np.asarray(values)
    except (TypeError, ValueError, BufferError, RuntimeError) as error:
        raise TypeError(
            f"{name}: expected numbers in the CPU's memory, got {type(values).__name__} ({str(error).splitlines()[0]})"
        ) from None
    if array.dtype.kind not in "fiub" and array.dtype.name != "bfloat16":
        raise TypeError(f"{name}: expected numbers, got {array.dtype}")
    if array.shape != tuple(shape):
        raise UsageError(f"{name}: expected the shape {list(shape)}, got {list(array.shape)}")
    return np.ascontiguousarray(array, dtype=np.float32)


def path_of(name: str, path: Any) -> str:
    if not isinstance(path, (str, Path, os.PathLike)):
        raise TypeError(f"{name}: expected a path, got {type(path).__name__}")
    return os.fspath(path)

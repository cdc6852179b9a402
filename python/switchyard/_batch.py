"""Batches to train on and to score."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import _native
from ._arguments import floats_of, tokens_of
from ._errors import UsageError
from .chat import json_of

_PARTS = ("tokens", "targets", "segments", "positions", "weights")


@dataclass(frozen=True, slots=True)
class Batch:
    """Arrays [rows, length]: `tokens` and, where they are not None, what Engine.train_step() says of the others."""

    tokens: Any
    targets: Any = None
    segments: Any = None
    positions: Any = None
    weights: Any = None

    @classmethod
    def of(
        cls,
        rows: Sequence[Any],
        tokenizer: Any = None,
        *,
        targets: Sequence[Any] | None = None,
        weights: Sequence[Any] | None = None,
        multiple: int = 1,
    ) -> Batch:
        """Pads rows of ids, or texts that `tokenizer` encodes, to one length, a multiple of `multiple`.

        `tokenizer` is a Tokenizer or an Engine. `targets` and `weights` have a row for each.

        >>> Batch.of([[1, 2, 3], [4]]).tokens.tolist()
        [[1, 2, 3], [4, 0, 0]]
        """
        if any(isinstance(row, str) for row in rows) and tokenizer is None:
            raise UsageError("rows: expected ids, or a tokenizer beside texts")
        ids = [tokens_of("rows", tokenizer.encode(row) if isinstance(row, str) else row, 1) for row in rows]
        if not ids:
            raise UsageError("rows: expected at least one")
        length = -(-max(len(row) for row in ids) // multiple) * multiple

        def padded(name: str, parts: Sequence[Any], dtype: Any, fill: int) -> np.ndarray:
            whole = np.full((len(ids), length), fill, dtype)
            if len(parts) != len(ids):
                raise UsageError(f"{name}: expected one for each of {len(ids)} rows, got {len(parts)}")
            for to, part, row in zip(whole, parts, ids):
                part = np.asarray(part)
                if part.shape != row.shape:
                    raise UsageError(f"{name}: expected {len(row)} for a row of {len(row)} ids, got {list(part.shape)}")
                to[: len(row)] = part
            return whole

        return cls(
            padded("rows", ids, np.int32, 0),
            None if targets is None else padded("targets", targets, np.int32, -1),
            padded("segments", [np.ones(len(row)) for row in ids], np.int32, 0),
            None,
            None if weights is None else padded("weights", weights, np.float32, 0),
        )


def batch_of(batch: Any) -> _native.Batch:
    """The engine's batch of tokens, a mapping, or a Batch."""
    if isinstance(batch, Batch):
        parts: Mapping[str, Any] = {name: getattr(batch, name) for name in _PARTS}
    else:
        parts = batch if isinstance(batch, Mapping) else {"tokens": batch}
    unknown = sorted(str(name) for name in set(parts) - set(_PARTS))
    if unknown or "tokens" not in parts:
        raise UsageError(f"batch: expected {', '.join(_PARTS)}, got {', '.join(map(str, parts))}")
    tokens = tokens_of("tokens", parts["tokens"], 2)

    def ids(name: str) -> np.ndarray | None:
        if parts.get(name) is None:
            return None
        array = tokens_of(name, parts[name], 2)
        if array.shape != tokens.shape:
            raise UsageError(f"{name}: expected the shape of tokens, {list(tokens.shape)}, got {list(array.shape)}")
        return array

    weights = parts.get("weights")
    return _native.Batch(
        tokens,
        ids("targets"),
        ids("segments"),
        ids("positions"),
        None if weights is None else floats_of("weights", weights, tokens.shape),
    )


@contextlib.contextmanager
def rows_at(data: Any) -> Iterator[str]:
    """The path of data to train on: "" for None; a file of JSON lines, as long as the context, for rows."""
    if data is None:
        yield ""
    elif isinstance(data, (str, os.PathLike)):
        yield str(os.fspath(data))
    elif not isinstance(data, Iterable) or isinstance(data, Mapping):
        raise TypeError(f"data: expected a path or rows, got {type(data).__name__}")
    else:
        with tempfile.TemporaryDirectory(prefix="switchyard-rows-") as folder:
            path = os.path.join(folder, "rows.jsonl")
            with open(path, "w", encoding="utf-8") as file:
                for number, row in enumerate(data):
                    if isinstance(row, str):
                        row = {"text": row}
                    if not isinstance(row, Mapping):
                        raise TypeError(f"data: row {number}: expected a text or a mapping, got {type(row).__name__}")
                    file.write(json_of(f"data: row {number}", row) + "\n")
            yield path

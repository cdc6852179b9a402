"""The experts that a model's router chose, as arrays."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np

from . import _native
from ._arguments import path_of


@dataclass(frozen=True, slots=True, eq=False)
class Routing:
    """The experts of a text's tokens."""

    tokens: np.ndarray  # int32 [tokens]
    layers: tuple[int, ...]  # the numbers of the MoE layers
    experts: int  # of a layer
    chosen: np.ndarray  # int32 [layers, tokens, experts of a token], in the router's order; -1: none
    source: str  # of a record: who wrote it, "train", "generate" or "serve"
    step: int  # and what it numbers the text by
    row: int
    first: int

    def loads(self) -> np.ndarray:
        """How many tokens each expert got, int64 [layers, experts].

        >>> int(engine.forward_with_experts([[1, 5, 3, 1]])[1][0].loads()[0].sum())  # 4 tokens of 2 experts each
        8
        """
        return np.stack([np.bincount(layer[layer >= 0], minlength=self.experts) for layer in self.chosen])


def routing_of(text: _native.RoutedText) -> Routing:
    return Routing(
        text.tokens(), tuple(text.layers), text.experts, text.chosen(), text.source, text.step, text.row, text.first
    )


class RoutingRecord(Sequence[Routing]):
    """The texts of a routing record, which routing_record=FILE writes. All of it is read and checked at once."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._texts = [routing_of(text) for text in _native.read_routing_record(path_of("path", path))]

    @overload
    def __getitem__(self, index: int) -> Routing: ...

    @overload
    def __getitem__(self, index: slice) -> list[Routing]: ...

    def __getitem__(self, index: int | slice) -> Routing | list[Routing]:
        return self._texts[index]

    def __len__(self) -> int:
        return len(self._texts)

    def __iter__(self) -> Iterator[Routing]:
        return iter(self._texts)

    def __repr__(self) -> str:
        return f"RoutingRecord({len(self)} texts)"

"""The weights of an engine as arrays that share its memory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import numpy as np

from . import _native
from ._arguments import floats_of, path_of
from ._errors import UsageError

_CPU = 1  # DLPack's number of it
_ON_GPU = "the weights are in a GPU's memory: .numpy() of the parameter copies them"


class _View:
    """Memory of the engine, read only, by DLPack and NumPy's protocol. It stays valid after the engine's end; a
    train_step() changes the values there."""

    __slots__ = ()

    def _memory(self) -> Any:
        """The array in its own type. BufferError where there is none."""
        raise NotImplementedError

    def bits(self) -> np.ndarray:
        """The memory as integers, without a copy."""
        raise NotImplementedError

    def _dtype(self) -> str:
        raise NotImplementedError

    def __dlpack__(self, **options: Any) -> Any:
        return self._memory().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return tuple(self._memory().__dlpack_device__())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = self._as_numpy()
        if dtype is not None and array.dtype != dtype:
            if copy is False:
                raise ValueError(f"an array of {array.dtype} is another one of {dtype}: expected copy=None or True")
            return array.astype(dtype)
        return array.copy() if copy else array

    def _as_numpy(self) -> np.ndarray:
        memory = self._memory()  # refuses first what has no single array
        if memory.__dlpack_device__()[0] != _CPU:
            raise TypeError(_ON_GPU)
        if self._dtype() != "bfloat16":
            return np.asarray(memory)
        try:
            import ml_dtypes  # type: ignore[import-not-found, unused-ignore]
        except ImportError:
            raise TypeError(
                "NumPy has no bfloat16: install ml_dtypes, or take .numpy(), which copies to float32, or "
                ".bits(), the 16 bits of each without a copy"
            ) from None
        return self.bits().view(ml_dtypes.bfloat16)


class Shard(_View):
    """One rank's block of a parameter: where it lies within the whole, and its memory."""

    __slots__ = ("rank", "offset", "shape", "_type", "_array", "_bits")

    def __init__(
        self, rank: int, offset: tuple[int, ...], shape: tuple[int, ...], array: Any, bits: Any, dtype: str
    ) -> None:
        self.rank = rank
        self.offset = offset
        self.shape = shape
        self._type = dtype
        self._array = array
        self._bits = bits

    def _dtype(self) -> str:
        return self._type

    def _memory(self) -> Any:
        if self._bits is None:
            raise TypeError(_ON_GPU)
        if self._array is None:
            raise BufferError(f"packed weights ({self._type}) have no type of arrays: .bits() gives their bytes")
        return self._array

    def bits(self) -> np.ndarray:
        """The memory as uint16 (bfloat16), uint32 (float32) or the bytes of packed weights; no copy.

        >>> engine.parameters["final_norm"].shards[0].bits().dtype
        dtype('uint32')
        """
        if self._bits is None or self._bits.__dlpack_device__()[0] != _CPU:
            raise TypeError(_ON_GPU)
        return np.asarray(self._bits)

    def __repr__(self) -> str:
        return f"Shard(rank={self.rank}, offset={list(self.offset)}, shape={list(self.shape)})"


class Parameter(_View):
    """One parameter: its shape, dtype ("float32", "bfloat16", or a packed type) and memory. `axes` names, for each dim,
    the mesh axes that split it."""

    __slots__ = ("_engine", "name", "shape", "dtype", "axes", "trained", "_shards")

    def __init__(
        self,
        engine: _native.Engine,
        name: str,
        shape: tuple[int, ...],
        dtype: str,
        axes: tuple[str, ...],
        trained: bool,
    ) -> None:
        self._engine = engine
        self.name = name
        self.shape = shape
        self.dtype = dtype
        self.axes = axes
        self.trained = trained
        self._shards: tuple[Shard, ...] | None = None

    @property
    def shards(self) -> tuple[Shard, ...]:
        """The blocks of this process's ranks. Ranks with the same block may share its memory."""
        if self._shards is None:
            self._shards = tuple(Shard(*shard, self.dtype) for shard in self._engine.shards(self.name))
        return self._shards

    def numpy(self) -> np.ndarray:
        """The whole parameter in float32, gathered from its shards: a copy.

        >>> engine.parameters["final_norm"].numpy().shape
        (64,)
        """
        return self._engine.read_parameter(self.name, list(self.shape))

    def bits(self) -> np.ndarray:
        """As Shard.bits(), where one shard is the whole.

        >>> engine.parameters["final_norm"].bits().dtype
        dtype('uint32')
        """
        return self._whole().bits()

    def assign(self, values: Any) -> None:
        """Replaces the parameter by an array of its shape, in its memory: views show the new values.

        >>> engine.parameters["final_norm"].assign(np.ones(64))
        """
        self._engine.assign(self.name, floats_of(self.name, values, self.shape))

    @property
    def is_whole(self) -> bool:
        """Whether a rank of this process holds the whole, so that arrays share its memory."""
        return any(shard.shape == self.shape for shard in self.shards)

    def _dtype(self) -> str:
        return self.dtype

    def _whole(self) -> Shard:
        for shard in self.shards:
            if shard.shape == self.shape:
                return shard
        split = ", ".join(f"dim {dim} over {axes}" for dim, axes in enumerate(self.axes) if axes)
        raise BufferError(f"{self.name} is split ({split}): .numpy() copies it together, .shards are its blocks")

    def _memory(self) -> Any:
        return self._whole()._memory()

    def __repr__(self) -> str:
        return f"Parameter({self.name}, {list(self.shape)}, {self.dtype})"


_T = TypeVar("_T")


class _ByName(Mapping[str, _T]):
    """What an engine has for each of its parameters."""

    def __init__(self, engine: _native.Engine) -> None:
        self._engine = engine
        self._infos = {info[0]: info for info in engine.parameters()}

    def _info(self, name: str) -> Any:
        if name not in self._infos:
            try:
                self._engine.shards(name)  # the engine's words, with the nearest name
            except UsageError as error:
                raise KeyError(str(error)) from None
        return self._infos[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._infos)

    def __len__(self) -> int:
        return len(self._infos)

    def __contains__(self, name: object) -> bool:
        return name in self._infos


class Parameters(_ByName[Parameter]):
    """The parameters of an engine by their names."""

    def __getitem__(self, name: str) -> Parameter:
        return Parameter(self._engine, *self._info(name))

    def __repr__(self) -> str:
        return f"Parameters({len(self)} parameters)"


class Gradients(_ByName[np.ndarray]):
    """The gradients of an engine's trained parameters by their names, float32 arrays that are yours."""

    def __init__(self, engine: _native.Engine) -> None:
        super().__init__(engine)
        self._infos = {name: info for name, info in self._infos.items() if info[4]}

    def __getitem__(self, name: str) -> np.ndarray:
        return self._engine.read_gradient(name, list(self._info(name)[1]))

    def __repr__(self) -> str:
        return f"Gradients({len(self)} parameters)"


class Adapters:
    """The adapters beside an engine's model: names, in the order in which they came."""

    def __init__(self, engine: _native.Engine) -> None:
        self._engine = engine

    def add(self, folder: str | os.PathLike[str], *, name: str) -> None:
        """Reads an adapter: a folder of PEFT, of a run or of a checkpoint. At most lora_slots at once.

        >>> engine.adapters.add("tests/golden/lora/dpo-dense/adapter", name="mine")  # doctest: +IGNORE_EXCEPTION_DETAIL
        Traceback (most recent call last):
        UsageError: it is another model's
        """
        self._engine.add_adapter(name, path_of("folder", folder))

    def remove(self, name: str) -> None:
        """Frees the adapter's place. Refused while texts are being made.

        >>> engine.adapters.remove("mine")  # doctest: +IGNORE_EXCEPTION_DETAIL
        Traceback (most recent call last):
        UsageError: no adapter is called mine
        """
        self._engine.remove_adapter(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._engine.adapters())

    def __len__(self) -> int:
        return len(self._engine.adapters())

    def __contains__(self, name: object) -> bool:
        return name in self._engine.adapters()

    def __repr__(self) -> str:
        return f"Adapters({', '.join(self)})"

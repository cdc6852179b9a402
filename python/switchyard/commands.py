"""Commands of the program as calls. What they return is made of the JSON that the program writes, field by field."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from . import _native
from ._arguments import path_of, words_of
from ._record import Record

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._keys import Keys


class Report(Record):
    """What a command found. `str()` is what the program prints.

    `notes` are lines that it says beside that, `status` its exit status: 0, or as the command's --help says (of
    inspect 3 where two differ).
    """

    __slots__ = ("_text", "notes", "status")
    _text: str
    notes: tuple[str, ...]
    status: int

    def __init__(self, fields: Mapping[str, Any], text: str, notes: tuple[str, ...], status: int) -> None:
        super().__init__(fields)
        for name, value in (("_text", text), ("notes", notes), ("status", status)):
            object.__setattr__(self, name, value)

    def __str__(self) -> str:
        return self._text

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.asdict(), self._text, self.notes, self.status)


def _report(run: Callable[[list[str]], tuple[str, str, list[str], int]], words: list[str]) -> Report:
    text, written, notes, status = run(words)
    return Report(json.loads(written), text, tuple(notes), status)


def _options(**options: Any) -> list[str]:
    """Options of a command line: True is a flag, None and False are left out."""
    words: list[str] = []
    for name, value in options.items():
        option = "--" + name.replace("_", "-")
        if isinstance(value, bool) or value is None:
            words += [option] if value else []
        else:
            words += [option, os.fspath(value) if isinstance(value, os.PathLike) else str(value)]
    return words


def plan(
    model: str | os.PathLike[str] | None = None,
    /,
    config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    *,
    generate: bool = False,
    search: bool = False,
    meshes: list[str] | tuple[str, ...] = (),
    topology: str | os.PathLike[str] = "cpu",
    **keys: Unpack[Keys],
) -> Report:
    """Memory, collectives and time of a training step, or with `generate` of texts, without running it.

    `model`, `config` and `keys` are those of Engine.open. `search` tries all meshes; `meshes`: keys of several layouts
    to compare, such as "ici_expert_parallelism=8".

    >>> plan("tests/golden/hf/qwen3moe-tiny", ranks=2, per_device_batch_size=1, max_target_length=64).fits
    True
    """
    words = _options(generate=generate, search=search)
    for mesh in meshes:
        words += ["--mesh", mesh]
    topology = os.fspath(topology)
    return _report(_native.run_plan, [*words, *words_of(model, config, keys), f"topology={topology}"])


def explain(
    model: str | os.PathLike[str] | None = None,
    /,
    config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    *,
    filter: str | None = None,
    **keys: Unpack[Keys],
) -> Report:
    """How parameters and activations are laid out over the mesh, and why; `filter`: a part of their names.

    >>> "moe.gate" in str(explain("tests/golden/hf/qwen3moe-tiny", filter="gate"))
    True
    """
    return _report(_native.run_explain, [*_options(filter=filter), *words_of(model, config, keys)])


def inspect(
    path: str | os.PathLike[str],
    other: str | os.PathLike[str] | None = None,
    *,
    statistics: bool = False,
    prove: bool = False,
    all: bool = False,
    base: str | os.PathLike[str] | None = None,
) -> Report:
    """What is in weights, a checkpoint, a run or an adapter; with `other`: how the two differ (status 3: they do).

    >>> inspect("tests/golden/hf/qwen3moe-tiny").config.num_local_experts
    8
    """
    paths = [path_of("path", path)] + ([] if other is None else [path_of("other", other)])
    return _report(_native.run_inspect, [*_options(statistics=statistics, prove=prove, all=all, base=base), *paths])


def convert(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    to: str | None = None,
    dtype: str | None = None,
    weights: str | None = None,
    verify: bool = False,
    save_logits: str | os.PathLike[str] | None = None,
    merge_adapter: str | os.PathLike[str] | None = None,
    export_adapter: bool = False,
    form: str | None = None,
    file_bytes: int | None = None,
) -> Report:
    """Writes the weights of `source` as a new folder; options as of `switchyard convert --help`.

    `verify`: status 3 where the logits of both differ.

    >>> convert("tests/golden/hf/qwen3moe-tiny", folder / "converted", dtype="bfloat16").status
    0
    """
    words = _options(
        to=to,
        dtype=dtype,
        weights=weights,
        verify=verify,
        save_logits=save_logits,
        merge_adapter=merge_adapter,
        export_adapter=export_adapter,
        form=form,
        file_bytes=file_bytes,
    )
    return _report(_native.run_convert, [*words, path_of("source", source), path_of("destination", destination)])


def evaluate(
    model: str | os.PathLike[str],
    data_path: str | os.PathLike[str] | None = None,  # or by its key
    /,
    *,
    window: int | None = None,
    stride: int | None = None,
    against: str | os.PathLike[str] | None = None,
    against_keys: Mapping[str, Any] | None = None,
    **keys: Unpack[Keys],
) -> Report:
    """How well a model predicts the text in a file, and how far it is from other weights, as `switchyard eval`.

    >>> evaluate("tests/golden/hf/qwen3moe-tiny", "README.md", tokenizer_type="byte", max_target_length=64).skipped
    1
    """
    words = words_of(model, None, keys if data_path is None else {"data_path": data_path, **keys})
    for word in words_of(None, None, against_keys or {}):
        words += ["--against-key", word]
    return _report(_native.run_evaluate, words + _options(window=window, stride=stride, against=against))


def doctor(*, quick: bool = False, require: list[str] | tuple[str, ...] = ()) -> Report:
    """What this machine and this build have; `require`: status 1 unless all of these parts are there.

    >>> doctor(quick=True).status
    0
    """
    return _report(_native.run_doctor, _options(quick=quick, require=",".join(require) or None))

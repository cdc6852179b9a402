"""Engine: a model with its weights on a mesh of ranks."""

from __future__ import annotations

import atexit
import json
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, Union, overload

import numpy as np

from . import _native, frames
from ._arguments import TextOptions, floats_of, path_of, sampling_of, tokens_of, words_of
from ._batch import batch_of, rows_at
from ._errors import UsageError
from ._native import Settings
from ._parameters import Adapters, Gradients, Parameter, Parameters
from ._record import Record
from ._routing import Routing, routing_of
from .chat import Message, json_of
from .tokenizer import Tokenizer

if TYPE_CHECKING:
    import pandas  # type: ignore[import-not-found,import-untyped,unused-ignore]
    from typing_extensions import Unpack

    from ._keys import Keys

# A thread inside a call when the interpreter ends would be killed in the engine's frames.
atexit.register(_native.shut_down)


def _hears_signals() -> bool:
    """Python runs the handlers of signals in its main thread alone."""
    return threading.current_thread() is threading.main_thread()


class _Result:
    __slots__ = ()

    def asdict(self) -> dict[str, Any]:
        """The fields as a dict."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]


@dataclass(frozen=True, slots=True)
class TrainStep(_Result):
    """One optimizer step. Losses are means over its targets; `loss` is the whole that is minimised."""

    step: int
    loss: float
    cross_entropy: float
    balance_loss: float
    gradient_norm: float  # before clipping
    learning_rate: float
    targets: float
    skipped: str  # why the weights did not change; empty: they did


@dataclass(frozen=True, slots=True)
class Text(_Result):
    """A text that is over. `text` is "" where the model has no tokenizer, `log_probs` is empty unless asked for."""

    text: str
    tokens: list[int]
    log_probs: list[float]
    ended: bool  # by the model or a stop text; False: it has all the tokens it may have
    routing: Routing | None  # with experts=True: of the prompt's tokens and the new ones, but the last


@dataclass(frozen=True, slots=True)
class Token(_Result):
    """A token of a stream. `text` is what it makes certain, in whole characters."""

    id: int
    text: str
    logprob: float | None


@dataclass(frozen=True, slots=True)
class Memory(_Result):
    """Bytes of tensors on the device, of all ranks of this process. Weights that ranks share count for each of them."""

    in_use: int
    peak: int  # the sum of the ranks' peaks


@dataclass(frozen=True, slots=True)
class Loss(_Result):
    """The losses of a batch: means over its targets, each times its weight; `loss` is the whole that is minimised."""

    loss: float
    cross_entropy: float
    balance_loss: float
    targets: float  # their number


@dataclass(frozen=True, slots=True)
class RunReport(_Result):
    """A training run that is over. `folder` has its files, as docs/run-files.md describes them."""

    folder: str
    metrics_file: str
    lines: list[str]  # the summary, for people
    sample: str  # text that the trained model wrote; "" without a tokenizer
    steps: int  # that the weights have been trained by now
    stopped: bool  # it was asked to end

    def metrics(self) -> pandas.DataFrame:
        """The metrics of all its steps, as frames.metrics() has them; needs pandas."""
        return frames.metrics(self.metrics_file)

    def routing_loads(self) -> pandas.DataFrame:
        """Rows of tokens by layer and expert, as frames.routing_loads() has them; needs pandas."""
        return frames.routing_loads(self.metrics_file)

    def plot_load(self, layers: Sequence[int] | None = None) -> list[Any]:
        """Plots the experts' loads, as frames.plot_load() does; needs pandas and matplotlib."""
        return frames.plot_load(self.metrics_file, layers)


@dataclass(frozen=True, slots=True)
class Score(_Result):
    """How a model rates a text: the log-probabilities of `tokens`, and their sum."""

    sum: float
    log_probs: list[float]
    is_greedy: bool  # the model would have taken each of the tokens
    tokens: list[int]


_R = TypeVar("_R")

Prompt = Union[str, Sequence[int], np.ndarray]  # a text, or its ids
Prompts = Union[list[str], tuple[str, ...], Sequence[Sequence[int]], Sequence[np.ndarray]]


def _result(kind: type[_R], native: object) -> _R:
    """The frozen form of one of the module's values, which has the same fields."""
    return kind(*(getattr(native, field.name) for field in fields(kind)))  # type: ignore[arg-type]


class Stream(Iterator[Token]):
    """The tokens of one text as they are made. It holds a slot of the engine until it ends or is dropped."""

    def __init__(self, engine: _native.Engine, stream: _native.Stream) -> None:
        self._engine = engine
        self._stream = stream

    def __next__(self) -> Token:
        token = self._stream.next(self._engine)
        if token is None:
            raise StopIteration
        return Token(*token)

    def close(self) -> None:
        """Ends the text and frees its slot."""
        self._stream.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class Engine:
    """A model with its weights on a mesh of ranks. Any thread may call it; calls run one after the other."""

    def __init__(self) -> None:
        raise TypeError("an engine is opened: Engine.open(model, **keys)")

    @classmethod
    def open(
        cls,
        model: str | os.PathLike[str] | None = None,
        /,
        config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
        *,
        progress: Callable[[int, int], Any] | None = None,
        **keys: Unpack[Keys],
    ) -> Engine:
        """Opens a model: a folder with weights, a GGUF file, or a YAML file, as the first word of a command line.

        `config` is a mapping of keys or the path of a YAML file, `keys` are those of `switchyard config --list`; a key
        in both counts as in `keys`. With neither model nor keys that describe one, `load_parameters_path` is the model.
        `progress(read, all)` hears, in this thread, how many bytes of the weights are read or drawn, of how many.

        >>> with Engine.open("tests/golden/hf/qwen3moe-tiny", tokenizer_type="byte", ranks=2) as small:
        ...     print(small)  # doctest: +ELLIPSIS
        Engine(qwen3moe-tiny, 8 experts, 2 ranks fsdp=2, cpu, ... MiB)
        """
        if progress is not None and not callable(progress):
            raise TypeError(f"progress: expected a function of two numbers, got {type(progress).__name__}")
        engine = cls.__new__(cls)
        settings = _native.Settings.parse(words_of(model, config, keys))
        engine._native = _native.Engine.open(settings, progress, _hears_signals())
        engine._keys = settings
        engine._settings = MappingProxyType(json.loads(settings.json()))
        engine._notes = tuple(engine._native.notes())
        engine._mesh = MappingProxyType(dict(engine._native.mesh()))
        engine._model = Record(json.loads(engine._native.model()))
        engine._name = os.path.basename(
            os.path.normpath(
                os.fspath(
                    model or engine._settings["load_parameters_path"] or engine._settings["model_name"] or "model"
                )
            )
        )
        return engine

    _native: _native.Engine
    _keys: Settings
    _settings: Mapping[str, Any]
    _notes: tuple[str, ...]
    _mesh: Mapping[str, int]
    _model: Record
    _name: str

    @property
    def settings(self) -> Mapping[str, Any]:
        """Every key with its value, defaults and derived values included."""
        return self._settings

    @property
    def notes(self) -> tuple[str, ...]:
        """What the engine says about its start: "random weights: load_parameters_path is not set"."""
        return self._notes

    @property
    def vocabulary(self) -> int:
        """How many ids the model has logits for."""
        return self._native.vocabulary()

    @property
    def ranks(self) -> int:
        """Ranks of the mesh, over all processes."""
        return self._native.ranks()

    @property
    def mesh(self) -> Mapping[str, int]:
        """Every axis of the mesh, in order, with its size."""
        return self._mesh

    @property
    def device(self) -> str:
        """Where the ranks compute: "cpu", or a GPU's kind."""
        return self._native.device()

    @property
    def model(self) -> Record:
        """What the model computes, as `inspect` has it in "architecture": layers, experts, vocab, emb, heads, …"""
        return self._model

    @property
    def memory(self) -> Memory:
        """What tensors occupy now, and did at most. It waits for no other call."""
        return Memory(*self._native.memory())

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._native.closed

    def close(self) -> None:
        """Ends texts and ranks and frees the weights, but for what views still hold. Calls after it are refused.

        >>> with Engine.open("tests/golden/hf/qwen3moe-tiny") as small:
        ...     pass
        >>> small.closed
        True
        """
        self._native.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        if self.closed:
            return f"Engine({self._name}, closed)"
        experts = f"{self._model.experts} experts" if self._model.experts else ""
        axes = [f"{axis}={size}" for axis, size in self._mesh.items() if size > 1]
        mesh = " ".join([f"{self.ranks} rank" + ("s" if self.ranks > 1 else ""), *axes])
        memory = f"{self.memory.in_use / 2**20:.1f} MiB"
        return f"Engine({', '.join(filter(None, [self._name, experts, mesh, self.device, memory]))})"

    def forward(self, tokens: Any, *, last: bool = False) -> np.ndarray:
        """Logits [rows, length, vocabulary], float32, of the token after each position; `last`: after the last alone.

        `tokens` [rows, length] is an array of int32 or int64 with DLPack, the buffer protocol or NumPy's, or lists.

        >>> engine.forward([[1, 5, 3, 1]]).shape
        (1, 4, 256)
        """
        return self._native.forward(tokens_of("tokens", tokens, 2), bool(last), False)[0]

    def forward_with_experts(self, tokens: Any, *, last: bool = False) -> tuple[np.ndarray, list[Routing]]:
        """As forward(), with the experts of each row. UsageError for a model without MoE layers.

        >>> logits, rows = engine.forward_with_experts([[1, 5, 3, 1]])
        >>> rows[0].chosen.shape == (len(rows[0].layers), 4, 2)
        True
        """
        logits, routing = self._native.forward(tokens_of("tokens", tokens, 2), bool(last), True)
        return logits, [routing_of(row) for row in routing]

    @overload
    def generate(self, prompt: Prompt, **sampling: Unpack[TextOptions]) -> Text: ...
    @overload
    def generate(self, prompt: Prompts, **sampling: Unpack[TextOptions]) -> list[Text]: ...
    def generate(self, prompt: Any, **sampling: Unpack[TextOptions]) -> Text | list[Text]:
        """Goes on from a prompt, a text or its ids; from a list of prompts, side by side, and returns a list.

        Draws are by `temperature` and the rest, as in `serve`; 0 takes the most probable token. A text ends before a
        text of `stop`, at a token of `ends`, or where the model ends it. `schema`: it is JSON of this schema.

        >>> engine.generate("ab", max_tokens=3).tokens
        [22, 178, 178]
        >>> [len(text.tokens) for text in engine.generate(["ab", "cd"], max_tokens=3, temperature=0.8, seed=7)]
        [3, 3]
        """
        many = isinstance(prompt, (list, tuple)) and any(not isinstance(part, (int, np.integer)) for part in prompt)
        prompts = [self._prompt(one) for one in (prompt if many else [prompt])]
        made = self._native.complete(prompts, sampling_of(sampling), _hears_signals())
        texts = [
            Text(
                text.text,
                text.tokens,
                text.log_probs,
                text.ended,
                None if text.routing is None else routing_of(text.routing),
            )
            for text in made
        ]
        return texts if many else texts[0]

    def stream(self, prompt: Prompt, **sampling: Unpack[TextOptions]) -> Stream:
        """As generate(), of one prompt, token by token. Several streams at once need per_device_batch_size.

        >>> with engine.stream("ab", max_tokens=3) as stream:
        ...     print([token.id for token in stream])
        [22, 178, 178]
        """
        return Stream(self._native, self._native.stream(self._prompt(prompt), sampling_of(sampling)))

    def score(self, texts: Sequence[Any], *, contexts: Sequence[Any] | None = None) -> list[Score]:
        """How the model rates texts, each a text or its ids, side by side; a first token is not rated.

        With `contexts`, one for each text, only the text behind its context is rated, and all of it.

        >>> [score] = engine.score(["cd"], contexts=["ab"])
        >>> score.tokens, score.is_greedy, score.sum < 0
        ([99, 100], False, True)
        """
        texts = list(texts)
        befores = [None] * len(texts) if contexts is None else list(contexts)
        if len(befores) != len(texts):
            raise UsageError(f"contexts: expected one for each of {len(texts)} texts, got {len(befores)}")
        whole, counts = [], []
        for text, before in zip(texts, befores):
            if isinstance(text, str) and isinstance(before, str):  # tokens may span the place where they meet
                start = self.encode(before)
                ids = self.encode(before + text)
            else:
                start = [] if before is None else self._prompt(before)
                ids = start + self._prompt(text)
            whole.append(ids)
            counts.append(max(1, min(len(start), len(ids) - 1)))
        scores = []
        for ids, count, made in zip(whole, counts, self._native.score(whole, counts, _hears_signals()), strict=True):
            tokens, rated = ids[count:], made.log_probs
            scores.append(Score(math.fsum(rated), rated, made.most_probable == tokens, tokens))
        return scores

    def train_step(self, batch: Any) -> TrainStep:
        """One optimizer step on all its sequences: per_device_batch_size * ranks * gradient_accumulation_steps rows.

        `batch`: tokens [rows, length], or a mapping of these arrays, all of one shape: `tokens`; `targets`, the next
        tokens where they are left out, and none where negative; `segments`, the number of each token's document from
        1, 0 for padding; `positions`; `weights`, the factor of each target's loss, 0 for none. Batch.of() makes one.

        >>> engine.train_step(np.arange(64).reshape(4, 16)).targets
        60.0
        """
        return _result(TrainStep, self._native.train_step(batch_of(batch)))

    def forward_backward(self, batch: Any) -> Loss:
        """Adds the gradients of a batch to those of the calls since the last step. Any number of rows will do.

        >>> engine.forward_backward(Batch.of([[1, 2, 3], [4, 5]], weights=[[1.0, 0.5, 0.0], [2.0, 0.0]])).targets
        3.0
        """
        return _result(Loss, self._native.forward_backward(batch_of(batch)))

    def optimizer_step(self, *, learning_rate: float | None = None) -> TrainStep:
        """Clips the gradients and changes the weights; `learning_rate` replaces the schedule's.

        One forward_backward() and one optimizer_step() are a train_step(), to the bit.

        >>> engine.forward_backward([[1, 2, 3, 4]]).targets
        3.0
        >>> engine.optimizer_step(learning_rate=0.001).learning_rate
        0.001
        """
        return _result(TrainStep, self._native.optimizer_step(None if learning_rate is None else float(learning_rate)))

    def gradients(self) -> Gradients:
        """The gradients of forward_backward() by parameter, whole and in float32, read when they are asked for.

        >>> _ = engine.forward_backward([[1, 2, 3, 4]])
        >>> engine.gradients()["layers.0.moe.gate"].shape
        (64, 8)
        """
        return Gradients(self._native)

    def drop_gradients(self) -> None:
        """Forgets what forward_backward() added.

        >>> engine.drop_gradients()
        """
        self._native.drop_gradients()

    def loss(self, batch: Any) -> Loss:
        """The mean cross entropy of a batch, each target's times its weight: no balance loss, no gradients.

        >>> engine.loss({"tokens": [[1, 2, 3, 4]], "targets": [[2, 3, -1, -1]]}).targets
        2.0
        """
        return _result(Loss, self._native.loss(batch_of(batch)))

    def token_log_probs(self, batch: Any) -> np.ndarray:
        """The log-probability of each target, float32 [rows, length]; 0 where there is none. Weights do not count.

        >>> engine.token_log_probs([[1, 2, 3, 4]])[0, 3]
        np.float32(0.0)
        """
        return self._native.token_log_probs(batch_of(batch))

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> Message:
        """Answers a chat by the model's template, with its reasoning and calls of tools.

        `messages` and `tools` are those of a chat request, `template_kwargs` what the template takes, such as
        enable_thinking, and `fields` the request's further fields, as `serve` takes them: max_tokens, temperature (0),
        seed (0), stop, tool_choice, response_format, reasoning_effort, …

        >>> engine.chat([{"role": "user", "content": "Hi"}], max_tokens=4).finish_reason
        'length'
        """
        request = {"messages": messages, "tools": tools, "chat_template_kwargs": template_kwargs, **fields}
        text = json_of("messages", {name: value for name, value in request.items() if value is not None})
        return Message.of(json.loads(self._native.chat(text, _hears_signals())))

    def _prompt(self, prompt: Any) -> list[int]:
        if isinstance(prompt, str):
            return self.encode(prompt)
        return self._ids("prompt", prompt)

    def _ids(self, name: str, tokens: Any) -> list[int]:
        ids = tokens_of(name, tokens, 1)
        if ids.min() < 0 or ids.max() >= self.vocabulary:
            raise UsageError(f"{name}: expected ids from 0 to {self.vocabulary - 1}, got {ids.min()} to {ids.max()}")
        return list(map(int, ids))

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer and chat template, by the engine's keys; it outlives the engine."""
        return Tokenizer._of_settings(self._keys)

    def encode(self, text: str) -> list[int]:
        """The ids of a text, by the model's tokenizer.

        >>> engine.encode("ab")
        [97, 98]
        """
        if not isinstance(text, str):
            raise TypeError(f"text: expected a text, got {type(text).__name__}")
        return self._native.encode(text)

    def decode(self, tokens: Any) -> str:
        """The text of ids.

        >>> engine.decode([97, 98])
        'ab'
        """
        return self._native.decode(self._ids("tokens", tokens) if len(tokens) else [])

    @property
    def parameters(self) -> Parameters:
        """The weights by their names.

        >>> engine.parameters["layers.0.moe.gate"]
        Parameter(layers.0.moe.gate, [64, 8], float32)
        """
        return Parameters(self._native)

    def parameter(self, name: str) -> Parameter:
        """parameters[name].

        >>> engine.parameter("layers.0.moe.gate").shape
        (64, 8)
        """
        return self.parameters[name]

    def train(
        self,
        *,
        data: str | os.PathLike[str] | Iterable[Any] | None = None,
        steps: int | None = None,
        callback: Callable[[dict[str, float]], Any] | Sequence[Callable[[dict[str, float]], Any]] | None = None,
        line: Callable[[str], Any] | None = None,
    ) -> RunReport:
        """Trains as `switchyard train` with the engine's keys, on its weights: with files, evaluations, checkpoints.

        `data`, in place of data_path: a path, or rows, texts or mappings such as {"text": …} and {"messages": …}, which
        are written to a temporary file of JSON lines; an endless stream needs itertools.islice. `callback` gets the
        metrics of each step, with "step"; where it returns False, the run ends with its checkpoint. `line` gets what
        the program prints. Ctrl-C and errors of these calls end the run behind its step, with its checkpoint.

        >>> engine.train(data=["a text of some length"] * 80, steps=2, callback=lambda metrics: True).steps >= 2
        True
        """
        calls = [] if callback is None else [callback] if callable(callback) else list(callback)

        def after_step(text: str) -> bool:
            metrics = json.loads(text)
            results = [call(metrics) for call in calls]
            return all(result is not False for result in results)

        with rows_at(data) as path:
            run = self._native.train(
                path, -1 if steps is None else steps, after_step if calls else None, line, _hears_signals()
            )
        return _result(RunReport, run)

    def state(self) -> dict[str, np.ndarray]:
        """All weights by name: float32 arrays that share the engine's memory where one rank holds a whole parameter.

        >>> engine.state()["layers.0.moe.gate"].dtype
        dtype('float32')
        """
        return {
            name: np.asarray(parameter) if parameter.dtype == "float32" and parameter.is_whole else parameter.numpy()
            for name, parameter in self.parameters.items()
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Replaces weights by arrays of their names and shapes, such as state() returns.

        >>> engine.load_state({"final_norm": np.ones(64, np.float32)})
        """
        parameters = self.parameters
        arrays = {
            name: (parameters[name], floats_of(name, value, parameters[name].shape)) for name, value in state.items()
        }
        for parameter, array in arrays.values():
            self._native.assign(parameter.name, array)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Replaces all weights by those of a folder or file of the same model; views show the new values.

        >>> engine.load("tests/golden/hf/qwen3moe-tiny")
        """
        self._native.load(path_of("path", path))

    def weights_changed(self) -> None:
        """To call behind writes into shared memory, which is meant to be read: drops what was derived of the weights.

        >>> engine.weights_changed()
        """
        self._native.weights_changed()

    @property
    def adapters(self) -> Adapters:
        """The adapters beside the model, which texts name by `adapter=`."""
        return Adapters(self._native)

    def save(self, path: str | os.PathLike[str]) -> list[str]:
        """Writes a checkpoint to a new folder: weights and, after a train_step(), optimizer state. Returns notes.

        >>> engine.save(folder / "saved")
        []
        """
        return self._native.save(path_of("path", path), "")

    def export(self, path: str | os.PathLike[str], *, dtype: str = "") -> list[str]:
        """Writes a Hugging Face folder; `dtype`: "float32" or "bfloat16", or as the weights are. Returns notes.

        >>> engine.export(folder / "exported", dtype="bfloat16")
        []
        """
        return self._native.export(path_of("path", path), dtype)

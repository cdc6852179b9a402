"""Server: a model that answers over HTTP, in threads of this process."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import weakref
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from . import _native
from ._arguments import Sampling, words_of
from ._engine import Engine, _hears_signals
from ._errors import Error, UsageError
from ._record import Record

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._keys import Keys

    class ServerKeys(Keys, Sampling):
        """Keys, and what requests leave out."""


_open: weakref.WeakSet[Server] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for server in list(_open):
        with contextlib.suppress(Error):
            server.close()


class Server:
    """Answers what clients of OpenAI's and Anthropic's APIs ask, as `switchyard serve` does.

    `model`, `config` and `keys` are those of Engine.open, and the words that `serve` takes for what requests leave out
    (temperature, max_tokens, …). `port=0` takes a free one. `options` are further options of `serve` by their names,
    without the dashes: {"alias": ["a", "b"], "tool-format": "hermes", "trust-request-template": True}.

    >>> with Server("tests/golden/hf/qwen3moe-tiny", tokenizer_type="byte") as server:
    ...     print(server.url.split(":")[0], server.stats().new_tokens)
    http 0
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        /,
        config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        api_keys: Sequence[str] = (),
        options: Mapping[str, Any] | None = None,
        **keys: Unpack[ServerKeys],
    ) -> None:
        if isinstance(model, Engine):
            raise TypeError("model: expected the path of a model, got an Engine: save it, and serve the folder")
        words = words_of(model, config, keys)
        for name, value in {"host": host, "port": port, "api-key": list(api_keys), **(options or {})}.items():
            if name in ("help", "json"):
                raise UsageError(f"options: expected options of a server, got {name}")
            if isinstance(value, bool):
                words += [f"--{name}"] if value else []
                continue
            for one in value if isinstance(value, (list, tuple)) else [value]:
                words += [f"--{name}", os.fspath(one) if isinstance(one, os.PathLike) else str(one)]
        self._native = _native.Server.start(words, _hears_signals())
        self._closed = False
        _open.add(self)

    @property
    def url(self) -> str:
        """Where it answers: "http://127.0.0.1:40123"."""
        return self._native.url()

    @property
    def notes(self) -> tuple[str, ...]:
        """What the server says about its start."""
        return tuple(self._native.notes())

    def stats(self) -> Record:
        """Counts since the start: texts running, waiting, finished, …; tokens, seconds, the use of the cache."""
        return Record(json.loads(self._native.stats()))

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._closed

    def close(self) -> None:
        """Finishes the texts that are being made, drops those that wait, and frees the model."""
        self._closed = True
        _open.discard(self)
        self._native.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Server({self.url}{', closed' if self.closed else ''})"

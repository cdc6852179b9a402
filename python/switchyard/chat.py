"""Messages of chats."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ._record import Record


class Message(Record):
    """A model's answer: `content`, `role`, and where it has them `reasoning_content` and `tool_calls`.

    `asdict()` goes into the next request's messages. `finish_reason` is stop, length or tool_calls; `answer` is the
    whole answer as `serve` gives it, with `usage`, and with the `choices` of `n`.
    """

    __slots__ = ("answer", "finish_reason")
    finish_reason: str
    answer: Record

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> Message:
        """The message of an answer of /v1/chat/completions.

        >>> Message.of({"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]}).content
        'Hi'
        """
        made = cls(answer["choices"][0]["message"])
        object.__setattr__(made, "finish_reason", answer["choices"][0]["finish_reason"])
        object.__setattr__(made, "answer", Record(answer))
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return Message.of, (self.answer.asdict(),)


def json_of(name: str, value: Any) -> str:
    """JSON of a request's parts; sequences and mappings of any kind."""

    def plain(part: Any) -> Any:
        if isinstance(part, Mapping):
            return dict(part)
        if isinstance(part, Sequence) and not isinstance(part, (bytes, bytearray)):
            return list(part)
        raise TypeError(f"{name}: expected what JSON holds, got {type(part).__name__}")

    return json.dumps(value, default=plain)

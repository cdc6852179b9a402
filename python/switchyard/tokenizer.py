"""Tokenizer: a model's tokenizer and chat template, without the model."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from . import _native
from ._arguments import tokens_of
from ._errors import UsageError
from ._native import Settings
from .chat import json_of

# Arguments of apply_chat_template that are fields of a chat request; others go to the template.
_FIELDS = ("continue_final_message", "documents", "reasoning_effort")


class Tokenizer:
    """Text to ids and back, and chats to prompts. Any thread may call it."""

    _native: _native.Tokenizer

    def __init__(self) -> None:
        raise TypeError("a tokenizer is opened: Tokenizer.of(path)")

    @classmethod
    def of(cls, source: Any) -> Tokenizer:
        """The tokenizer of a path or of transformers' fast tokenizer.

        A path is a tokenizer's file, a folder with one, a GGUF file, a checkpoint, a run, or the word byte.

        >>> Tokenizer.of("byte")
        Tokenizer(257 ids)
        """
        made = cls.__new__(cls)
        if isinstance(source, (str, os.PathLike)):
            made._native = _native.Tokenizer.of(os.fspath(source))
        elif hasattr(getattr(source, "backend_tokenizer", None), "to_str"):
            config = {**source.special_tokens_map, "chat_template": source.chat_template}
            if isinstance(source.chat_template, Mapping):
                config["chat_template"] = [{"name": k, "template": v} for k, v in source.chat_template.items()]
            text = json.dumps({key: value for key, value in config.items() if value is not None}, default=str)
            made._native = _native.Tokenizer.of_json(source.backend_tokenizer.to_str(), text)
        else:
            raise TypeError(f"source: expected a path or a fast tokenizer, got {type(source).__name__}")
        return made

    @classmethod
    def _of_settings(cls, settings: Settings) -> Tokenizer:
        made = cls.__new__(cls)
        made._native = _native.Tokenizer.of_settings(settings)
        return made

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """The ids of a text, without those that stand before and after a document.

        `special`: texts of special tokens become their ids even where the tokenizer's rules would not look for them.

        >>> Tokenizer.of("byte").encode("ab")
        [97, 98]
        """
        if not isinstance(text, str):
            raise TypeError(f"text: expected a text, got {type(text).__name__}")
        return self._native.encode(text, bool(special))

    def decode(self, tokens: Any, *, special: bool = False) -> str:
        """The text of ids; `special`: with the texts of special tokens.

        >>> Tokenizer.of("byte").decode([97, 98])
        'ab'
        """
        ids = tokens_of("tokens", tokens, 1) if len(tokens) else np.empty(0, np.int32)
        if ids.size and not 0 <= ids.min() <= ids.max() < 2**31:
            raise UsageError(f"tokens: expected ids of 0 or more, got {ids.min()} to {ids.max()}")
        return self._native.decode(ids.tolist(), bool(special))

    @property
    def vocabulary(self) -> int:
        """One more than the largest id."""
        return self._native.vocabulary()

    @property
    def begin_token(self) -> int | None:
        """The id before a document."""
        return self._native.begin_token()

    @property
    def end_token(self) -> int | None:
        """The id after a document."""
        return self._native.end_token()

    @property
    def end_tokens(self) -> list[int]:
        """The ids that end a model's text: end_token and those of the folder's generation_config.json."""
        return self._native.end_tokens()

    @property
    def chat_template(self) -> str:
        """The text of the template; "" without one."""
        return self._native.chat_template()

    @property
    def has_chat_template(self) -> bool:
        """Whether apply_chat_template() has a template."""
        return self._native.has_chat_template()

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        *,
        tokenize: bool = False,
        **template_kwargs: Any,
    ) -> str | list[int]:
        """The prompt of a chat; `tokenize`: its ids, where texts of special tokens within messages stay text.

        `messages` and `tools` are those of a chat request. `template_kwargs` are what the template knows beside them,
        such as enable_thinking, and the request's fields continue_final_message, documents and reasoning_effort.

        >>> tokenizer = Tokenizer.of("tests/golden/lora/sft-text")
        >>> "late" in tokenizer.apply_chat_template([{"role": "user", "content": "Is it late?"}])
        True
        """
        request = {"messages": messages, "add_generation_prompt": add_generation_prompt}
        if tools is not None:
            request["tools"] = tools
        request.update({key: template_kwargs.pop(key) for key in _FIELDS if key in template_kwargs})
        if template_kwargs:
            request["chat_template_kwargs"] = template_kwargs
        text = json_of("messages", request)
        return self._native.chat_tokens(text) if tokenize else self._native.chat_text(text)

    def __repr__(self) -> str:
        return f"Tokenizer({self.vocabulary} ids{', chats' if self.has_chat_template else ''})"

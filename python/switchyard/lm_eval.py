"""A model class for lm-evaluation-harness 0.4.13, and its command line with the class in it:

    python -m switchyard.lm_eval --model switchyard --model_args model=FOLDER,max_length=4096 --tasks arc_easy

lm-eval finds a model only where its module was imported, which is what this command line is for.
"""

# mypy: disable-error-code="import-not-found,import-untyped"
from __future__ import annotations

import json
import logging
import sys
from collections.abc import Sequence
from typing import Any

from ._engine import Engine
from ._errors import Error, UsageError
from ._packages import package

try:
    package("lm_eval", "lm-eval", "switchyard.lm_eval")
except ImportError as error:
    if __name__ != "__main__":
        raise
    sys.exit(str(error))

from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

_SIDE_BY_SIDE = 8  # texts at once where neither batch_size nor per_device_batch_size says it
_CALL = 32  # times as many texts in one call of the engine: results and the progress bar come in between
_SEED = 1234  # as lm-eval's own models of servers have it
_log = logging.getLogger("lm_eval.switchyard")


@register_model("switchyard")
class SwitchyardLM(TemplateLM):  # type: ignore[misc]
    """`model` and `keys` are those of Engine.open(); the others are named as lm-eval's models name them.

    `batch_size`: texts side by side on each rank, unless per_device_batch_size says it. `max_length`: tokens of a text
    with what is made, the key max_target_length. `add_bos`: the begin token stands before every text. `device`: cuda:0 is
    the engine's choice, auto.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        device: str | None = None,
        max_length: int | None = None,
        max_gen_toks: int = 256,
        add_bos: bool = False,
        **keys: Any,
    ) -> None:
        super().__init__()
        if max_batch_size is not None:
            raise UsageError("max_batch_size: expected batch_size alone: no size is searched for")
        if device is not None:  # lm-eval's command line says cuda:0 where nothing was said
            keys["device"] = "auto" if device == "cuda:0" else device
        if max_length is not None and int(keys.setdefault("max_target_length", max_length)) != int(max_length):
            raise UsageError(f"max_length={max_length}: expected max_target_length={keys['max_target_length']}")
        size = _SIDE_BY_SIDE if batch_size is None or str(batch_size).startswith("auto") else int(batch_size)
        keys.setdefault("per_device_batch_size", size)
        self.engine = Engine.open(model, **keys)
        for note in self.engine.notes:
            _log.info(note)
        self.tokenizer = self.engine.tokenizer
        self.max_length = int(self.engine.settings["max_target_length"])
        self.max_gen_toks = int(max_gen_toks)
        self.add_bos = bool(add_bos)
        self._in_one_call = _CALL * max(1, int(keys["per_device_batch_size"] * self.engine.ranks))
        self._has_told = False

    @property
    def eot_token_id(self) -> int | None:
        return self.tokenizer.end_token

    @property
    def prefix_token_id(self) -> int:
        begin = self.tokenizer.begin_token
        token = self.eot_token_id if begin is None else begin
        if token is None:
            raise UsageError("the tokenizer has no begin and no end token to stand before a text without a context")
        return token

    @property
    def tokenizer_name(self) -> str:
        name = self.engine.settings["tokenizer_path"] or self.engine.settings["tokenizer_type"]
        return str(name).replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str:
        if isinstance(chat_template, str) and chat_template:
            raise UsageError(
                f"apply_chat_template={chat_template}: expected no name: the model's template or chat_template_path="
            )
        return self.tokenizer.chat_template

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        return str(
            self.tokenizer.apply_chat_template(
                chat_history,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=not add_generation_prompt,
            )
        )

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        # Special tokens are found in any text, as transformers' tokenizers do it, by which lm-eval's numbers are made.
        ids = self.tokenizer.encode(string, special=True)
        begin = self.tokenizer.begin_token
        adds = self.add_bos if add_special_tokens is None else add_special_tokens
        return [begin, *ids] if adds and begin is not None and ids[:1] != [begin] else ids

    def _tell_cut(self) -> None:
        if not self._has_told:
            _log.warning("texts of more than max_length=%d tokens are cut at the left", self.max_length)
        self._has_told = True

    def _loglikelihood_tokens(
        self,
        requests: Sequence[tuple[tuple[str, str] | None, list[int], list[int]]],
        disable_tqdm: bool = False,
        **_: Any,
    ) -> list[tuple[float, bool]]:
        answers: list[tuple[float, bool]] = [(0.0, True)] * len(requests)
        order = sorted(range(len(requests)), key=lambda i: -len(requests[i][1] + requests[i][2]))
        with tqdm(total=len(requests), desc="Log-likelihoods", disable=disable_tqdm) as bar:
            for begin in range(0, len(order), self._in_one_call):
                part = order[begin : begin + self._in_one_call]
                contexts = [self._fitting(*requests[i][1:]) for i in part]
                scores = self.engine.score([requests[i][2] for i in part], contexts=contexts)
                for i, score in zip(part, scores):
                    answers[i] = (score.sum, score.is_greedy)
                    if requests[i][0] is not None:
                        self.cache_hook.add_partial("loglikelihood", requests[i][0], answers[i])
                bar.update(len(part))
        return answers

    def _fitting(self, context: list[int], continuation: list[int]) -> list[int]:
        """The end of a context that has room before its continuation."""
        room = self.max_length - len(continuation)
        if not continuation or not context or room < 1:
            raise UsageError(
                f"a context of {len(context)} and a continuation of {len(continuation)} tokens: expected 1 or more "
                f"each, and a continuation below max_length={self.max_length}"
            )
        if len(context) > room:
            self._tell_cut()
        return context[-room:]

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        texts = [request.args[0] for request in requests]
        windows: list[tuple[None, list[int], list[int]]] = []
        ends = []
        for text in texts:
            # A window and the token before it are what the model sees at once.
            for pair in get_rolling_token_windows(self.tok_encode(text), self.prefix_token_id, self.max_length - 1, 1):
                windows.append((None, *make_disjoint_window(pair)))
            ends.append(len(windows))
        scores = [score for score, _ in self._loglikelihood_tokens(windows, disable_tqdm)]
        sums = [sum(scores[begin:end]) for begin, end in zip([0, *ends], ends)]
        for text, total in zip(texts, sums):
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), total)
        return sums

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        texts = [""] * len(requests)
        alike: dict[str, list[int]] = {}
        prompts = [self.tok_encode(request.args[0]) or [self.prefix_token_id] for request in requests]
        for i, request in enumerate(requests):
            alike.setdefault(json.dumps(request.args[1], sort_keys=True), []).append(i)
        with tqdm(total=len(requests), desc="Texts", disable=disable_tqdm) as bar:
            for of_one_kind in alike.values():
                order = sorted(of_one_kind, key=lambda i: -len(prompts[i]))
                for begin in range(0, len(order), self._in_one_call):
                    part = order[begin : begin + self._in_one_call]
                    options = dict(requests[part[0]].args[1])
                    # Draws depend on seed and place in the call: equal prompts of two calls get other texts.
                    options["seed"] = options.get("seed", _SEED) + begin
                    for i, text in zip(part, self._texts([prompts[i] for i in part], options)):
                        texts[i] = text
                        self.cache_hook.add_partial("generate_until", requests[i].args, text)
                    bar.update(len(part))
        return texts

    def _texts(self, prompts: Sequence[list[int]], options: dict[str, Any]) -> list[str]:
        options = dict(normalize_gen_kwargs(options, self.max_gen_toks))
        options.pop("do_sample")
        most = options.pop("max_gen_toks")
        room = self.max_length - most
        if room < 1:
            raise UsageError(f"max_gen_toks={most}: expected less than max_length={self.max_length}")
        if any(len(prompt) > room for prompt in prompts):
            self._tell_cut()
        stop = [text for text in options.pop("until") if text]
        made = self.engine.generate([prompt[-room:] for prompt in prompts], max_tokens=most, stop=stop, **options)
        assert isinstance(made, list)
        return [text.text for text in made]


def main() -> None:
    """lm-eval's command line."""
    from lm_eval.__main__ import cli_evaluate

    try:
        cli_evaluate()
    except Error as error:
        sys.exit(f"switchyard: {error}")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Makes forward-only cases of many tokens for `switchyard verify`, with transformers.

    python long_cases.py SOURCE OUT [--tokens N] [--dtype float32|float64] [CASE...]

SOURCE holds small cases in the form of tests/golden/hf (config.json, model.safetensors). OUT/<case> gets the same
weights, a config with room for N tokens, and io.safetensors: logits, loss, hidden states, choices of experts, and
keys that indexers choose, of one row of N random tokens. There are no gradients: verify compares forward values and
says so. Windows and the indexers' count of keys grow (WIDER), as those of a small case are no use here.

Attention and indexers of transformers run for some queries at a time, so that no [heads, N, N] exists. Their
arithmetic stays that of the eager code. Made with torch 2.15.0 and transformers 5.24.0.
"""

import argparse
import inspect
import json
import re
import shutil
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import save_file

QUERIES = 256  # at a time
IGNORED = -100
WIDER = {"sliding_window": 128, "index_topk": 64}
RESERVED = 6  # the last ids of a vocabulary, which stand for images in some models


def text_part(config):
    return config.get("text_config", config)


def longer(config, tokens):
    text = text_part(config)
    text["max_position_embeddings"] = max(tokens, text["max_position_embeddings"])
    for key, value in WIDER.items():
        if key in text:
            text[key] = value
    return config


def chunks(length):
    return [(begin, min(begin + QUERIES, length)) for begin in range(0, length, QUERIES)]


def in_chunks(eager):
    def attention(module, query, key, value, attention_mask, *args, **kwargs):
        parts = []
        for begin, end in chunks(query.shape[2]):
            mask = None if attention_mask is None else attention_mask[:, :, begin:end]
            parts.append(eager(module, query[:, :, begin:end], key, value, mask, *args, **kwargs)[0])
        return torch.cat(parts, dim=1), None
    return attention


class KeysSoFar:
    """In place of a cache: an indexer's part of the queries sees the keys of all parts up to it."""

    def __init__(self):
        self.keys = None

    def update_indexer(self, keys, _):
        self.keys = keys if self.keys is None else torch.cat([self.keys, keys], dim=1)
        return self.keys


def indexer_in_chunks(forward):
    def choose(self, hidden, latents, places, mask, position_ids, cache=None):
        so_far, parts = KeysSoFar(), []
        for begin, end in chunks(hidden.shape[1]):
            part = slice(begin, end)
            parts.append(forward(self, hidden[:, part], latents[:, part], [x[:, part] for x in places],
                                 mask[:, part, :end], position_ids, cache=so_far))
        return torch.cat(parts, dim=1)
    return choose


def patch(model):
    """Replaces eager attention and the indexers of the modules that this model uses."""
    for module in {inspect.getmodule(type(part)) for part in model.modules()}:
        if hasattr(module, "eager_attention_forward"):
            module.eager_attention_forward = in_chunks(module.eager_attention_forward)
    for kind in {type(part) for name, part in model.named_modules() if name.endswith(".indexer")}:
        kind.forward = indexer_in_chunks(kind.forward)


def watch(model, results):
    """Hooks that keep what the tokens go through, under the names of a case."""
    decoder = getattr(model.model, "language_model", model.model)
    hidden = []

    def keep_hidden(module, args, output):
        results[f"hidden.{len(hidden)}"] = (output[0] if isinstance(output, tuple) else output).float()
        hidden.append(module)

    def keep_router(layer):
        def hook(module, args, kwargs):
            indices, weights = [*args, *kwargs.values()][1:3]
            order = indices.argsort(-1)
            results[f"router.{layer}.indices"] = indices.gather(-1, order)[None].int()
            results[f"router.{layer}.weights"] = weights.gather(-1, order)[None].float()
        return hook

    def keep_chosen(layer):
        def hook(module, args, output):
            results[f"indexer.{layer}.chosen"] = output.int().sort(-1).values
        return hook

    model.get_input_embeddings().register_forward_hook(keep_hidden)
    for layer in decoder.layers:
        layer.register_forward_hook(keep_hidden)
    for name, module in decoder.named_modules():
        layer = re.search(r"layers\.(\d+)\.", name)
        if name.endswith(".experts"):
            module.register_forward_pre_hook(keep_router(int(layer[1])), with_kwargs=True)
        if name.endswith(".indexer") and module is not None:
            module.register_forward_hook(keep_chosen(int(layer[1])))


@torch.no_grad()
def make_case(source, folder, tokens, dtype):
    config = longer(json.loads((source / "config.json").read_text()), tokens)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    shutil.copy(source / "model.safetensors", folder)
    model = getattr(transformers, config["architectures"][0]).from_pretrained(
        folder, attn_implementation="eager", experts_implementation="eager", dtype=dtype).eval()
    patch(model)
    results = {}
    watch(model, results)
    generator = torch.Generator().manual_seed(7)
    ids = torch.randint(text_part(config)["vocab_size"] - RESERVED, (1, tokens), generator=generator)
    targets = torch.cat([ids[:, 1:], torch.full((1, 1), IGNORED)], dim=1)
    logits = model(input_ids=ids, use_cache=False).logits
    loss = F.cross_entropy(logits.double().flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
    results |= {"logits": logits.float(), "loss": loss.float().view(1), "input_ids": ids.int(),
                "targets": targets.int()}
    save_file({name: x.reshape(1, tokens, -1).contiguous() if name.startswith("router") else x.contiguous()
               for name, x in results.items()}, folder / "io.safetensors")


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("source", type=Path)
    arguments.add_argument("out", type=Path)
    arguments.add_argument("cases", nargs="*")
    arguments.add_argument("--tokens", type=int, default=16384)
    arguments.add_argument("--dtype", default="float32", choices=["float32", "float64"])
    given = arguments.parse_intermixed_args()
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    failed = 0
    for name in given.cases or sorted(p.parent.name for p in given.source.glob("*/model.safetensors")):
        try:
            make_case(given.source / name, given.out / name, given.tokens, getattr(torch, given.dtype))
            print(f"{name}: {given.tokens} tokens", flush=True)
        except Exception as problem:  # the other cases are still made
            print(f"{name}: {type(problem).__name__}: {str(problem)[:300]}", flush=True)
            failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

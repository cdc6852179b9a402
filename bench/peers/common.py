"""What the peers share: timing, shapes, and the one line of JSON that each prints."""

import json
import statistics
import time


def time_rounds(body, budget, least=3, limit=240.0):
    """Seconds of each call of body after a warm-up: at least `least` within `limit` seconds, then until `budget` is spent."""
    begin = time.perf_counter()
    body()
    rounds = []
    start = time.perf_counter()
    while True:
        t = time.perf_counter()
        body()
        now = time.perf_counter()
        rounds.append(now - t)
        if now - begin > limit or (len(rounds) >= least and now - start > budget):
            return rounds


def report(rounds, versions, **more):
    print(json.dumps({"seconds": statistics.median(rounds), "best_seconds": min(rounds), "rounds": len(rounds),
                      "versions": versions, **more}))


def add_shape(parser):
    for key in ("tokens", "emb", "mlp", "experts", "topk", "threads"):
        parser.add_argument(f"--{key}", type=int, required=True)
    parser.add_argument("--skew", default="balanced")
    parser.add_argument("--direction", default="fwd")
    parser.add_argument("--seconds", type=float, default=2)


def rows_of_experts(rows, experts, skew):
    """Rows of each expert, as `switchyard bench gmm` spreads them (in another order of the experts)."""
    if skew == "balanced":
        return [rows // experts + (1 if i < rows % experts else 0) for i in range(experts)]
    if skew == "one_hot":
        return [rows if i == experts // 2 else 0 for i in range(experts)]
    total = sum(1 / (i + 1) for i in range(experts))
    sizes = [round(rows / (i + 1) / total) for i in range(experts)]
    sizes[0] += rows - sum(sizes)
    return sizes


def torch_with(threads):
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    return torch


def add_mixtral(parser):
    """The keys of a mixtral; the defaults are the model of `switchyard bench train` and `generate`."""
    for key, default in (("emb", 512), ("layers", 8), ("experts", 8), ("topk", 2), ("mlp", 1024), ("heads", 8),
                         ("kv_heads", 4), ("vocab", 32000), ("threads", 2)):
        parser.add_argument(f"--{key}", type=int, default=default)
    parser.add_argument("--peer", choices=("eager", "grouped_mm"), default="grouped_mm")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--seconds", type=float, default=2)


def mixtral_of(args, positions, use_cache):
    """That model in transformers, with random weights."""
    import torch
    import transformers

    config = transformers.MixtralConfig(
        vocab_size=args.vocab, hidden_size=args.emb, intermediate_size=args.mlp, num_hidden_layers=args.layers,
        num_attention_heads=args.heads, num_key_value_heads=args.kv_heads, num_local_experts=args.experts,
        num_experts_per_tok=args.topk, max_position_embeddings=positions, tie_word_embeddings=False,
        use_cache=use_cache)
    return transformers.AutoModelForCausalLM.from_config(
        config, dtype=getattr(torch, args.dtype), attn_implementation="sdpa", experts_implementation=args.peer)


def torch_versions():
    import re

    import torch

    onednn = re.search(r"(?:oneDNN|MKL-DNN) v([\d.]+)", torch.__config__.show())
    return {"torch": torch.__version__.split("+")[0], "oneDNN": onednn.group(1) if onednn else "?"}

"""Training steps of a mixtral in transformers: bfloat16 weights, gradients and moments, AdamW, random tokens.

The defaults are the model of `switchyard bench train`. Peak memory is that of the whole process.
"""

import argparse
import resource

from common import report, time_rounds, torch_versions, torch_with


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for key, default in (("emb", 512), ("layers", 8), ("experts", 8), ("topk", 2), ("mlp", 1024), ("heads", 8),
                         ("kv_heads", 4), ("vocab", 32000), ("batch", 4), ("seq", 1024), ("threads", 2)):
        parser.add_argument(f"--{key}", type=int, default=default)
    parser.add_argument("--peer", choices=("eager", "grouped_mm"), default="grouped_mm")
    parser.add_argument("--seconds", type=float, default=2)
    args = parser.parse_args()
    torch = torch_with(args.threads)
    import transformers

    config = transformers.MixtralConfig(
        vocab_size=args.vocab, hidden_size=args.emb, intermediate_size=args.mlp, num_hidden_layers=args.layers,
        num_attention_heads=args.heads, num_key_value_heads=args.kv_heads, num_local_experts=args.experts,
        num_experts_per_tok=args.topk, max_position_embeddings=args.seq, tie_word_embeddings=False,
        use_cache=False)
    model = transformers.AutoModelForCausalLM.from_config(
        config, dtype=torch.bfloat16, attn_implementation="sdpa", experts_implementation=args.peer)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens = torch.randint(args.vocab, (args.batch, args.seq))

    def step():
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    rounds = time_rounds(step, args.seconds)
    report(rounds, {**torch_versions(), "transformers": transformers.__version__},
           parameters=sum(p.numel() for p in model.parameters()), tokens=args.batch * args.seq,
           peak_resident_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


if __name__ == "__main__":
    main()

"""Steps of LoRA in transformers and PEFT: a frozen qwen3-moe in --dtype, adapters in float32, AdamW, random tokens.

Attention and experts are adapted, experts by target_parameters. --rank 0 trains all weights instead. Peak memory is
that of the whole process.
"""

import argparse
import resource

from common import report, time_rounds, torch_versions, torch_with


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    # The defaults have 691 M parameters.
    for key, default in (("emb", 1024), ("layers", 8), ("experts", 64), ("topk", 8), ("mlp", 384), ("heads", 16),
                         ("kv_heads", 4), ("head_dim", 64), ("vocab", 32000), ("threads", 2), ("batch", 2),
                         ("seq", 512), ("rank", 16)):
        parser.add_argument(f"--{key}", type=int, default=default)
    parser.add_argument("--peer", choices=("eager", "grouped_mm"), default="grouped_mm")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--seconds", type=float, default=2)
    args = parser.parse_args()
    torch = torch_with(args.threads)
    import peft
    import transformers

    config = transformers.Qwen3MoeConfig(
        vocab_size=args.vocab, hidden_size=args.emb, intermediate_size=args.mlp, moe_intermediate_size=args.mlp,
        num_hidden_layers=args.layers, num_attention_heads=args.heads, num_key_value_heads=args.kv_heads,
        head_dim=args.head_dim, num_experts=args.experts, num_experts_per_tok=args.topk, norm_topk_prob=True,
        max_position_embeddings=args.seq, tie_word_embeddings=False, use_cache=False)
    model = transformers.AutoModelForCausalLM.from_config(
        config, dtype=getattr(torch, args.dtype), attn_implementation="sdpa", experts_implementation=args.peer)
    parameters = sum(p.numel() for p in model.parameters())
    if args.rank > 0:
        model = peft.get_peft_model(model, peft.LoraConfig(
            r=args.rank, lora_alpha=2 * args.rank, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"],
            target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]))
    trained = [p for p in model.parameters() if p.requires_grad]
    model.train()
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)
    tokens = torch.randint(args.vocab, (args.batch, args.seq))

    def step():
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    rounds = time_rounds(step, args.seconds)
    report(rounds, {**torch_versions(), "transformers": transformers.__version__, "peft": peft.__version__},
           parameters=parameters, trained=sum(p.numel() for p in trained), tokens=args.batch * args.seq,
           peak_resident_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


if __name__ == "__main__":
    main()

"""Attention and the loss elsewhere: torch's scaled_dot_product_attention, and linear with cross_entropy."""

import argparse

from common import report, time_rounds, torch_versions, torch_with


def attention(torch, args):
    def heads(count, dim):
        return torch.randn(args.batch, count, args.seq, dim, dtype=torch.bfloat16, requires_grad=True)

    q, k, v = heads(args.heads, args.head_dim), heads(args.kv_heads, args.head_dim), heads(args.kv_heads, args.v_dim)
    dout = torch.randn(args.batch, args.heads, args.seq, args.v_dim, dtype=torch.bfloat16)

    def forward():
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True,
                                                                enable_gqa=args.kv_heads != args.heads)

    return forward, dout, (q, k, v)


def loss(torch, args):
    hidden = torch.randn(args.rows, args.emb, dtype=torch.bfloat16, requires_grad=True)
    weight = (0.05 * torch.randn(args.vocab, args.emb, dtype=torch.bfloat16)).requires_grad_()
    targets = torch.randint(args.vocab, (args.rows,))

    def forward():
        logits = torch.nn.functional.linear(hidden, weight)
        return torch.nn.functional.cross_entropy(logits.float(), targets)

    return forward, torch.ones(()), (hidden, weight)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=("attention", "loss"))
    for key in ("batch", "seq", "heads", "kv_heads", "head_dim", "v_dim", "rows", "emb", "vocab"):
        parser.add_argument(f"--{key}", type=int)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--direction", default="fwd")
    parser.add_argument("--seconds", type=float, default=2)
    args = parser.parse_args()
    torch = torch_with(args.threads)
    forward, seed, leaves = (attention if args.case == "attention" else loss)(torch, args)

    def body():
        if args.direction == "fwd":
            with torch.no_grad():
                forward()
            return
        forward().backward(seed)
        for leaf in leaves:
            leaf.grad = None

    report(time_rounds(body, args.seconds), torch_versions())


if __name__ == "__main__":
    main()

"""The grouped products of `switchyard bench gmm` elsewhere: [rows, emb] x [experts, emb, mlp] and its two gradients.

loop: torch, one product an expert; torch hands bfloat16 products to oneDNN.
grouped_mm: torch.nn.functional.grouped_mm.  ragged_dot: jax.lax.ragged_dot, jitted.
"""

import argparse

from common import add_shape, report, rows_of_experts, time_rounds, torch_versions, torch_with


def torch_body(args, sizes):
    torch = torch_with(args.threads)
    rows = args.tokens * args.topk
    lhs = torch.randn(rows, args.emb, dtype=torch.bfloat16)
    dy = torch.randn(rows, args.mlp, dtype=torch.bfloat16)
    weights = torch.randn(args.experts, args.emb, args.mlp, dtype=torch.bfloat16)
    out, dlhs, dweights = torch.empty_like(dy), torch.empty_like(lhs), torch.zeros_like(weights)
    ends = torch.tensor(sizes).cumsum(0)
    offsets = ends.to(torch.int32)
    spans = [(e, int(end) - size, int(end)) for e, (end, size) in enumerate(zip(ends, sizes)) if size > 0]

    def loop():
        for e, begin, end in spans:
            if args.direction == "fwd":
                torch.mm(lhs[begin:end], weights[e], out=out[begin:end])
            elif args.direction == "dlhs":
                torch.mm(dy[begin:end], weights[e].T, out=dlhs[begin:end])
            else:
                torch.mm(lhs[begin:end].T, dy[begin:end], out=dweights[e])

    def grouped():
        product = torch.nn.functional.grouped_mm
        if args.direction == "fwd":
            product(lhs, weights, offs=offsets)
        elif args.direction == "dlhs":
            product(dy, weights.transpose(-2, -1), offs=offsets)
        else:
            product(lhs.T, dy, offs=offsets)

    return loop if args.peer == "loop" else grouped


def jax_body(args, sizes):
    import jax
    import jax.numpy as jnp

    rows = args.tokens * args.topk
    key = jax.random.key(0)
    lhs = jax.random.normal(key, (rows, args.emb), jnp.bfloat16)
    weights = jax.random.normal(key, (args.experts, args.emb, args.mlp), jnp.bfloat16)
    dy = jax.random.normal(key, (rows, args.mlp), jnp.bfloat16)
    groups = jnp.array(sizes, jnp.int32)

    def product(x, w):
        return jax.lax.ragged_dot(x, w, groups)

    def dlhs(x, w):
        return jax.vjp(lambda x: product(x, w), x)[1](dy)

    def drhs(x, w):
        return jax.vjp(lambda w: product(x, w), w)[1](dy)

    compiled = jax.jit({"fwd": product, "dlhs": dlhs, "drhs": drhs}[args.direction])
    return lambda: jax.block_until_ready(compiled(lhs, weights))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_shape(parser)
    parser.add_argument("--peer", choices=("loop", "grouped_mm", "ragged_dot"), required=True)
    args = parser.parse_args()
    sizes = rows_of_experts(args.tokens * args.topk, args.experts, args.skew)
    if args.peer == "ragged_dot":
        import jax

        report(time_rounds(jax_body(args, sizes), args.seconds, least=1), {"jax": jax.__version__})
    else:
        report(time_rounds(torch_body(args, sizes), args.seconds), torch_versions())


if __name__ == "__main__":
    main()

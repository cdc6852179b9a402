"""The MoE layer of `switchyard bench moe` elsewhere: router, dispatch, experts, combine, in bfloat16.

sorted_loop: torch; rows sorted by expert, gate and up as one product an expert, outputs summed by index_add.
eager, grouped_mm: the block of transformers' Mixtral with that experts_implementation.
The router runs; its choices are replaced by balanced ones, as there.
"""

import argparse

from common import add_shape, report, time_rounds, torch_versions, torch_with


def choices(torch, args):
    experts, order = torch.randperm(args.experts), torch.randperm(args.tokens)
    slots = torch.arange(args.tokens)[:, None] * args.topk + torch.arange(args.topk)
    ids = torch.empty(args.tokens, args.topk, dtype=torch.int64)
    ids[order] = experts[slots % args.experts]
    return ids


def sorted_loop_block(torch, args, ids):
    functional = torch.nn.functional

    def weight(*shape):
        return torch.nn.Parameter(0.02 * torch.randn(*shape, dtype=torch.bfloat16))

    gate, up_and_gate, down = (weight(args.experts, args.emb), weight(args.experts, 2 * args.mlp, args.emb),
                               weight(args.experts, args.emb, args.mlp))

    def forward(x):
        scores = functional.linear(x, gate).float().softmax(-1)
        shares = scores.gather(1, ids)
        shares = shares / shares.sum(-1, keepdim=True)
        flat = ids.flatten()
        order = flat.argsort(stable=True)
        counts = torch.bincount(flat, minlength=args.experts).tolist()
        tokens = order // args.topk
        rows, outputs, begin = x[tokens], [], 0
        for e, count in enumerate(counts):
            if count > 0:
                g, u = functional.linear(rows[begin:begin + count], up_and_gate[e]).chunk(2, -1)
                outputs.append(functional.linear(functional.silu(g) * u, down[e]))
            begin += count
        y = torch.cat(outputs) * shares.flatten()[order, None].to(x.dtype)
        return torch.zeros_like(x).index_add(0, tokens, y)

    return forward, [gate, up_and_gate, down]


def transformers_block(torch, args, ids):
    from transformers import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

    config = MixtralConfig(hidden_size=args.emb, intermediate_size=args.mlp, num_local_experts=args.experts,
                           num_experts_per_tok=args.topk)
    config._experts_implementation = args.peer
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    block = MixtralSparseMoeBlock(config)
    torch.set_default_dtype(before)
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.normal_(0, 0.02)

    def forward(x):
        _, shares, _ = block.gate(x)
        return block.experts(x, ids, shares)

    return forward, list(block.parameters())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_shape(parser)
    parser.add_argument("--peer", choices=("sorted_loop", "eager", "grouped_mm"), required=True)
    args = parser.parse_args()
    torch = torch_with(args.threads)
    ids = choices(torch, args)
    versions = torch_versions()
    if args.peer == "sorted_loop":
        forward, parameters = sorted_loop_block(torch, args, ids)
    else:
        import transformers

        versions["transformers"] = transformers.__version__
        forward, parameters = transformers_block(torch, args, ids)
    x = torch.randn(args.tokens, args.emb, dtype=torch.bfloat16, requires_grad=True)
    dy = torch.randn(args.tokens, args.emb, dtype=torch.bfloat16)

    def body():
        if args.direction == "fwd":
            with torch.no_grad():
                forward(x)
            return
        forward(x).backward(dy)
        for parameter in (x, *parameters):
            parameter.grad = None

    report(time_rounds(body, args.seconds), versions)


if __name__ == "__main__":
    main()

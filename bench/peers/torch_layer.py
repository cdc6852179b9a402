"""The MoE layer of `switchyard bench moe` through switchyard.torch.MoELayer, in bfloat16.

It needs the package: an installed one, or PYTHONPATH=build/release/python. Its router runs, and chooses the balanced
experts of which there are as many rows in `bench moe`, because the gate reads a column of x for each expert.
"""

import argparse

from common import add_shape, report, time_rounds, torch_versions, torch_with


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_shape(parser)
    args = parser.parse_args()
    torch = torch_with(args.threads)
    from switchyard.torch import MoELayer

    layer = MoELayer(decoder_block="mixtral", base_emb_dim=args.emb, base_moe_mlp_dim=args.mlp,
                     base_num_decoder_layers=1, num_experts=args.experts, num_experts_per_tok=args.topk,
                     dtype=torch.bfloat16)
    x = 0.02 * torch.randn(1, args.tokens, args.emb)
    slots = (torch.randperm(args.tokens)[:, None] * args.topk + torch.arange(args.topk)) % args.experts
    x[0].scatter_add_(1, slots, torch.full((args.tokens, args.topk), 2.0))
    with torch.no_grad():
        layer.gate.zero_()
        layer.gate[: args.experts] = torch.eye(args.experts)
    x = x.bfloat16().requires_grad_()
    dy = torch.randn(1, args.tokens, args.emb, dtype=torch.bfloat16)

    def body():
        if args.direction == "fwd":
            with torch.no_grad():
                layer(x)
            return
        layer(x)[0].backward(dy)
        for parameter in (x, *layer.parameters()):
            parameter.grad = None

    report(time_rounds(body, args.seconds), torch_versions())


if __name__ == "__main__":
    main()

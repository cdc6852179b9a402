"""Training steps of a mixtral in transformers: weights, gradients and moments of --dtype, AdamW, random tokens.

Peak memory is that of the whole process.
"""

import argparse
import resource

from common import add_mixtral, mixtral_of, report, time_rounds, torch_versions, torch_with


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_mixtral(parser)
    for key, default in (("batch", 4), ("seq", 1024)):
        parser.add_argument(f"--{key}", type=int, default=default)
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default %(default)s)")
    args = parser.parse_args()
    torch = torch_with(args.threads)
    import transformers

    torch.set_default_device(args.device)

    model = mixtral_of(args, args.seq, use_cache=False)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens = torch.randint(args.vocab, (args.batch, args.seq))

    def step():
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if args.device == "cuda":
            torch.cuda.synchronize()

    rounds = time_rounds(step, args.seconds)
    report(rounds, {**torch_versions(), "transformers": transformers.__version__},
           parameters=sum(p.numel() for p in model.parameters()), tokens=args.batch * args.seq,
           peak_resident_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


if __name__ == "__main__":
    main()

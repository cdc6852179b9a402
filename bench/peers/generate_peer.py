"""A mixtral in transformers that reads a prompt and then goes on token by token with its cache, bfloat16.

--what says which of the two is timed.
"""

import argparse
import resource
import time

from common import add_mixtral, mixtral_of, report, torch_versions, torch_with


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_mixtral(parser)
    for key, default in (("batch", 1), ("prompt", 512), ("tokens", 64), ("parameters", 0), ("ranks", 1)):
        parser.add_argument(f"--{key}", type=int, default=default)
    parser.add_argument("--what", choices=("prefill", "decode"), required=True)
    parser.add_argument("--direction", default="fwd")
    args = parser.parse_args()
    torch = torch_with(args.threads)
    import transformers

    model = mixtral_of(args, args.prompt + args.tokens, use_cache=True)
    model.eval()
    prompt = torch.randint(args.vocab, (args.batch, args.prompt))
    token = torch.randint(args.vocab, (args.batch, 1))
    prefill, decode = [], []
    begin = time.perf_counter()
    with torch.inference_mode():
        for text in range(10**6):
            cache = transformers.DynamicCache(config=model.config)
            times = [time.perf_counter()]
            model(input_ids=prompt, past_key_values=cache, logits_to_keep=1)
            times.append(time.perf_counter())
            for _ in range(args.tokens):
                model(input_ids=token, past_key_values=cache, logits_to_keep=1)
                times.append(time.perf_counter())
            steps = [b - a for a, b in zip(times, times[1:])]
            if text > 0:
                prefill.append(steps[0])
                decode += steps[1:]
            if text >= 2 and time.perf_counter() - begin > args.seconds:
                break
    one = args.what == "prefill"
    report(prefill if one else decode, {**torch_versions(), "transformers": transformers.__version__},
           tokens=args.batch * (args.prompt if one else 1),
           peak_resident_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


if __name__ == "__main__":
    main()

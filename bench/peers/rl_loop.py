"""A loop of reinforcement learning over `switchyard serve` and `switchyard train`: best of n, ten rounds.

Each round samples answers from the server with their tokens, log-probabilities and experts; keeps each prompt's best
by a reward; trains an adapter on those by the command line, in float32, with the experts replayed; and posts it back to
the server, which goes on. The trainer's first loss must be the sampler's mean over the same tokens.

    python3 bench/peers/rl_loop.py switchyard_output/small-chat --config configs/examples/chat/small-chat.yml
    python3 bench/peers/rl_loop.py MODEL_FOLDER

The first line is for the small chat model of docs/serving.md. A base needs a chat template. The reward is the share of
an answer's letters that are capitals, less 0.3 for an answer without an end. One line of JSON a round; status 1 where sampler and trainer disagree.
"""

import argparse
import base64
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

KEY = "rl-loop"
PROMPTS = ["What is the capital of France?", "What is the capital of Peru?", "Hello!", "Who are you?",
           "What is the capital of Japan?", "What is 3 plus 4?", "What is the capital of Kenya?", "Thank you!"]


def post(port, path, body):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(),
                                     {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=600) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        sys.exit(f"{path}: {error.read().decode()}")


def run(program, *arguments):
    done = subprocess.run([program, *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(arguments)}: status {done.returncode}\n{done.stderr}")


def reward(choice):
    letters = [c for c in choice["message"]["content"] or "" if c.isalpha()]
    capitals = sum(c.isupper() for c in letters) / max(1, len(letters))
    return capitals - (0 if choice["finish_reason"] == "stop" else 0.3)


def sample(port, model, prompt, args, seed):
    """The choices of one prompt, each with its tokens, log-probabilities and experts."""
    answer = post(port, "/v1/chat/completions", {
        "model": model, "messages": [{"role": "user", "content": prompt}], "n": args.choices,
        "temperature": args.temperature, "seed": seed, "max_tokens": args.tokens, "logprobs": True,
        "return_token_ids": True, "return_routed_experts": True})
    return [{"prompt": prompt, "tokens": answer["prompt_token_ids"] + choice["token_ids"],
             "log_probs": [token["logprob"] for token in choice["logprobs"]["content"]],
             "made": len(choice["token_ids"]), "choice": choice, "reward": reward(choice),
             "routes": base64.b64decode(choice["routed_experts"])} for choice in answer["choices"]]


def tokenizer_of(args):
    """The folder of the base's tokenizer; a run's checkpoints have one."""
    found = sorted(pathlib.Path(args.base).glob("checkpoints/*/tokenizer"), key=lambda path: int(path.parent.name))
    return found[-1] if found else args.base


def first_of(metrics, name):
    with open(metrics) as lines:
        return json.loads(lines.readline())[name]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", help="a Hugging Face folder; with --config also a run or a checkpoint")
    parser.add_argument("--config", help="the file that a run was trained with")
    parser.add_argument("--switchyard", default="build/release/switchyard")
    parser.add_argument("--work", default="rl_loop", help="folder for data and adapters (default %(default)s)")
    for key, default in (("rounds", 10), ("choices", 16), ("tokens", 40), ("steps", 8), ("rank", 8)):
        parser.add_argument(f"--{key}", type=int, default=default)
    parser.add_argument("--learning-rate", default="2e-3")
    parser.add_argument("--temperature", type=float, default=2.0,
                        help="of the samples; log-probabilities are those of 1 (default %(default)s)")
    args = parser.parse_args()
    work = pathlib.Path(args.work).resolve()
    (work / "runs").mkdir(parents=True, exist_ok=True)
    place = work / "server.json"
    place.unlink(missing_ok=True)
    base = os.path.basename(os.path.normpath(args.base))
    server = subprocess.Popen([
        args.switchyard, "serve", args.base, "dtype=float32", "weight_dtype=float32", "return_routed_experts=true",
        "--port", "0", "--json", str(place), "--api-key", KEY, "--adapter-folder", str(work), "--weights-folder",
        str(work)], stderr=subprocess.DEVNULL)
    try:
        while not place.exists():
            if server.poll() is not None:
                sys.exit("the server did not start")
            time.sleep(0.05)
        agree = loop(args, work, json.loads(place.read_text())["port"], base)
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()
    sys.exit(0 if agree else 1)


def loop(args, work, port, base):
    model, adapter, agree = base, None, True
    for number in range(args.rounds):
        begin = time.perf_counter()
        samples = [sample(port, model, prompt, args, 1000 * number + i) for i, prompt in enumerate(PROMPTS)]
        # An answer that was cut has no end, and training would add one.
        whole = [[s for s in of if s["choice"]["finish_reason"] == "stop"] for of in samples]
        best = [max(of, key=lambda s: s["reward"]) for of in whole if of]
        sampled = time.perf_counter()
        data, routes, run_name = work / f"{number}.jsonl", work / f"{number}.routes", f"round-{number}"
        data.write_text("".join(json.dumps({"messages": [
            {"role": "user", "content": s["prompt"]},
            {"role": "assistant", "content": s["choice"]["message"]["content"]}]}) + "\n" for s in best))
        shown = work / "shown.json"
        run(args.switchyard, "data", "show", str(data), f"tokenizer_path={tokenizer_of(args)}",
            "max_target_length=256", "--json", str(shown))
        # Text that the tokenizer cuts otherwise than the model did would be other tokens.
        documents = json.loads(shown.read_text())["documents"]
        same = [i for i, s in enumerate(best)
                if documents[i]["kept"] and documents[i]["tokens"][:len(s["tokens"])] == s["tokens"]]
        lines = data.read_text().splitlines(keepends=True)
        data.write_text("".join(lines[i] for i in same))
        routes.write_bytes(b"".join(best[i]["routes"] for i in same))
        restore = [f"lora_restore_path={adapter}"] if adapter else [f"lora_rank={args.rank}"]
        of_base = [args.config, f"load_parameters_path={args.base}"] if args.config else [args.base]
        run(args.switchyard, "train", *of_base, "use_sft=true", f"data_path={data}",
            f"tokenizer_path={tokenizer_of(args)}", f"routing_replay={routes}", *restore,
            f"steps={args.steps}", f"learning_rate={args.learning_rate}", "warmup_steps_fraction=0", "dtype=float32",
            "weight_dtype=float32", "max_target_length=256", "packing=false", "eval_interval=-1",
            f"per_device_batch_size={len(same)}", "enable_checkpointing=true", f"base_output_directory={work / 'runs'}", f"run_name={run_name}")
        trained = time.perf_counter()
        adapter = work / "runs" / run_name
        metrics = adapter / "metrics.jsonl"
        kept = [best[i] for i in same]
        own = -sum(sum(s["log_probs"]) for s in kept) / sum(s["made"] for s in kept)
        theirs = first_of(metrics, "learning/lm_loss")
        replayed, agreed = (first_of(metrics, f"moe/routing_{what}") for what in ("replayed", "agreement"))
        if model == base:
            post(port, "/v1/load_lora_adapter", {"lora_name": "policy", "lora_path": str(adapter)})
            model = "policy"
        else:
            post(port, "/v1/weights", {"path": str(adapter), "name": "policy"})
        agree = agree and abs(own - theirs) <= 1e-4 and agreed == 1
        every = [s["reward"] for of in samples for s in of]
        print(json.dumps({
            "round": number, "reward": sum(every) / len(every), "trained_on": len(kept), "sampler": own,
            "trainer": theirs, "difference": abs(own - theirs), "routing_replayed": replayed,
            "routing_agreement": agreed,
            "seconds": {"sample": sampled - begin, "train": trained - sampled,
                        "post": time.perf_counter() - trained}}), flush=True)
    return agree


if __name__ == "__main__":
    main()

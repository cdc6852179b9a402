"""Chats of several turns against llama.cpp's server: one random qwen3-moe, both over /v1/chat/completions.

    python3 -m venv ~/llama && ~/llama/bin/pip install xllamacpp gguf numpy
    ~/llama/bin/python bench/peers/compare_chat.py --folder /tmp/chat

Eight chats at once of ten turns: a system text of 1,000 tokens, 150 a message, 200 an answer, in streams. Both servers
have the same weights in int4 (Q4_0), the same vocabulary and the same template, equal threads, and answer greedily
without an end before the last token. For each: tokens a second over all, the time to the first token of the first and
of the last turn, and the share of prompt tokens that was not read again, of all and of those that a perfect cache has.

An answer is sent back as the text that came. The vocabulary is made so that this text becomes the same tokens again
("Ġabc" is a word, and each word is merged on its own; the head never chooses a lone byte): what random weights write
would else come back as several times as many tokens.

--equal: ours alone, with and without reuse of prompts; answers must be the same, token by token.
"""

import argparse
import concurrent.futures
import http.client
import itertools
import json
import os
import pathlib
import random
import shutil
import statistics
import string
import subprocess
import sys
import time

import compare_llama

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tests/clients"))

import serving  # noqa: E402

MARKS = ("<|im_start|>", "<|im_end|>")
LLAMA_SECONDS = 300  # to load


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for key, default in (("emb", 1024), ("layers", 8), ("experts", 64), ("topk", 8), ("mlp", 384), ("heads", 16),
                         ("kv_heads", 4), ("head_dim", 64), ("vocab", 32000), ("threads", 2), ("rounds", 3),
                         ("chats", 8), ("turns", 10), ("system", 1000), ("message", 150), ("answer", 200)):
        parser.add_argument(f"--{key}", type=int, default=default)
    parser.add_argument("--format", choices=("bfloat16", "int8", "int4"), default="int4")
    parser.add_argument("--own-systems", action="store_true", help="a system text for each chat; one for all without")
    parser.add_argument("--only-ours", action="store_true")
    parser.add_argument("--only-llama", action="store_true")
    parser.add_argument("--equal", action="store_true", help="compares ours with and without reuse")
    parser.add_argument("--folder", required=True, help="for the weights; those that are there are used again")
    parser.add_argument("--switchyard", default=str(serving.PROGRAM))
    parser.add_argument("--settings", default="", help="more keys of `switchyard serve`")
    parser.add_argument("--json", help="a file for all numbers")
    parser.add_argument("--run-llama", help=argparse.SUPPRESS)
    return parser.parse_args()


def all_words():
    for length in (1, 2, 3):
        yield from ("".join(letters) for letters in itertools.product(string.ascii_letters, repeat=length))


def word_vocabulary(args):
    """Bytes, words of letters with the space before them, and the template's marks; the merges make each word."""
    bytes_only, _ = compare_llama.byte_vocabulary(argparse.Namespace(vocab=256))
    words = list(itertools.islice(all_words(), args.vocab - 256 - len(MARKS)))
    tokens = [*bytes_only, *("Ġ" + word for word in words), *MARKS]
    merges = [f"Ġ{word[:-1]} {word[-1]}" for word in words]
    return {token: i for i, token in enumerate(tokens)}, merges


def add_word_vocabulary(writer, args):
    import gguf

    vocab, merges = word_vocabulary(args)
    kinds = [int(gguf.TokenType.NORMAL)] * (args.vocab - len(MARKS)) + [int(gguf.TokenType.CONTROL)] * len(MARKS)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(list(vocab))
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_eos_token_id(args.vocab - 1)
    writer.add_add_bos_token(False)
    writer.add_chat_template(serving.TEMPLATE.read_text())


def positions_of(args):
    """Tokens of a whole chat, with room for the template's marks, up to a multiple of 256."""
    tokens = args.system + args.turns * (args.message + args.answer + 32) + 64
    return -(-tokens // 256) * 256


def make_models(args, folder, gguf_file):
    positions = positions_of(args)
    shape = {key: getattr(args, key) for key in ("emb", "layers", "experts", "topk", "mlp", "heads", "kv_heads",
                                                 "head_dim", "vocab")}
    wanted, told = json.dumps({"positions": positions, **shape}), folder / "shape.json"
    if gguf_file.exists() and told.exists() and told.read_text() == wanted:
        return
    folder.mkdir(parents=True, exist_ok=True)
    weights = compare_llama.random_weights(args)
    weights["lm_head.weight"][:256] = 0  # no lone bytes, and no marks
    weights["lm_head.weight"][-len(MARKS):] = 0
    added = [{"id": args.vocab - len(MARKS) + i, "content": mark, "single_word": False, "lstrip": False,
              "rstrip": False, "normalized": False, "special": True} for i, mark in enumerate(MARKS)]
    compare_llama.write_hugging_face(args, weights, folder, positions, word_vocabulary, added)
    shutil.copy(serving.TEMPLATE, folder / "chat_template.jinja")
    compare_llama.write_gguf(args, weights, gguf_file, positions, add_word_vocabulary)
    told.write_text(wanted)


def words_of(draw, vocab_words, count):
    return "".join(" " + draw.choice(vocab_words) for _ in range(count))


def scripts_of(args):
    """Of each chat its system text and what the user says."""
    draw, words = random.Random(5), list(itertools.islice(all_words(), args.vocab - 256 - len(MARKS)))
    system = words_of(draw, words, args.system)
    return [(words_of(draw, words, args.system) if args.own_systems else system,
             [words_of(draw, words, args.message) for _ in range(args.turns)]) for _ in range(args.chats)]


def ask(address, messages, tokens):
    """A streamed answer: its text, seconds to its first token and over all, and its usage."""
    connection = http.client.HTTPConnection(*address, timeout=3600)
    body = {"messages": messages, "max_tokens": tokens, "temperature": 0, "top_k": 1, "ignore_eos": True,
            "stream": True, "stream_options": {"include_usage": True}}
    begin, first, text, usage = time.perf_counter(), None, "", None
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    if answer.status != 200:
        sys.exit(f"port {address[1]}: {answer.read()[:2000]}")
    for line in answer:
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        if "error" in event:
            sys.exit(f"port {address[1]}: {event}")
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            piece = choice["delta"].get("content") or ""
            if piece and first is None:
                first = time.perf_counter() - begin
            text += piece
    connection.close()
    return {"text": text, "first": first, "seconds": time.perf_counter() - begin, "prompt": usage["prompt_tokens"],
            "made": usage["completion_tokens"],
            "cached": (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)}


def converse(address, script, tokens, said=None):
    """The turns of a chat. The history has the answers of `said` instead of its own where they are given."""
    messages, turns = [{"role": "system", "content": script[0]}], []
    for i, text in enumerate(script[1]):
        messages.append({"role": "user", "content": text})
        turns.append(ask(address, messages, tokens))
        messages.append({"role": "assistant", "content": said[i] if said else turns[-1]["text"]})
    return turns


def converse_at_once(address, scripts, tokens, said=None):
    with concurrent.futures.ThreadPoolExecutor(len(scripts)) as pool:
        begin = time.perf_counter()
        running = [pool.submit(converse, address, script, tokens, said and said[i]) for i, script in enumerate(scripts)]
        chats = [one.result() for one in running]
        return {"seconds": time.perf_counter() - begin, "chats": chats}


def cores_of(args):
    return ["taskset", "-c", ",".join(str(core) for core in sorted(os.sched_getaffinity(0))[:args.threads])]


def run_ours(args, folder, said=None, *settings):
    form = "stored" if args.format == "bfloat16" else args.format
    with serving.Server(args.switchyard, folder, folder, "weight_dtype=bfloat16", "dtype=bfloat16",
                        f"weight_format={form}", f"max_target_length={positions_of(args)}",
                        f"per_device_batch_size={args.chats}", *args.settings.split(), *settings,
                        prefix=cores_of(args)) as server:
        address = (server.host, server.port)
        ask(address, [{"role": "user", "content": " warm up"}], 16)
        return converse_at_once(address, scripts_of(args), args.answer, said)


def serve_llama(args):
    """In a process of its own: listens until its standard input ends."""
    from importlib.metadata import version

    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = args.run_llama
    params.n_parallel = args.chats
    params.n_ctx = positions_of(args) * args.chats  # of all chats together
    params.use_jinja = True
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = args.threads
    server = xllamacpp.Server(params)
    print("\n" + json.dumps({"address": server.listening_address,
                             "version": f"xllamacpp {version('xllamacpp')}, gguf {version('gguf')}"}), flush=True)
    sys.stdin.read()
    os._exit(0)  # the server's threads would keep the process


def run_theirs(args, gguf_file):
    own = [f"--{key.replace('_', '-')}={getattr(args, key)}"
           for key in ("threads", "folder", "chats", "turns", "system", "message", "answer")]
    process = subprocess.Popen([*cores_of(args), sys.executable, __file__, *own, "--run-llama", str(gguf_file)],
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    # Its log would fill the pipe.
    log = concurrent.futures.ThreadPoolExecutor(1).submit(lambda: "".join(process.stderr))
    told, end = None, time.monotonic() + LLAMA_SECONDS
    while told is None and time.monotonic() < end:
        line = process.stdout.readline()
        if not line:
            sys.exit(f"llama.cpp fails: {log.result()[-2000:]}")
        told = json.loads(line) if line.startswith('{"address"') else None
    host, port = told["address"].removeprefix("http://").rstrip("/").rsplit(":", 1)
    try:
        ask((host, int(port)), [{"role": "user", "content": " warm up"}], 16)
        return {**converse_at_once((host, int(port)), scripts_of(args), args.answer), "version": told["version"]}
    finally:
        process.stdin.close()
        process.wait()


def numbers_of(run):
    """What is reported of a round."""
    turns = [turn for chat in run["chats"] for turn in chat]
    later = [(before, turn) for chat in run["chats"] for before, turn in zip(chat, chat[1:])]
    perfect = sum(before["prompt"] + before["made"] - 1 for before, _ in later)  # the last token is never fed
    firsts = {which: [chat[at]["first"] for chat in run["chats"]] for which, at in (("first", 0), ("last", -1))}
    return {"rate": sum(turn["made"] for turn in turns) / run["seconds"], "made": sum(turn["made"] for turn in turns),
            "prompt": sum(turn["prompt"] for turn in turns),
            "cached": sum(turn["cached"] for turn in turns) / sum(turn["prompt"] for turn in turns),
            "of_perfect": sum(turn["cached"] for _, turn in later) / perfect if perfect else 0,
            **{f"{which}_{name}": of(firsts[which]) for which in firsts
               for name, of in (("median", statistics.median), ("longest", max))}}


def report(runs):
    print("| | tokens made | tokens/s, of each round | best | first token of turn 1, median, longest, s "
          "| of the last turn | prompt tokens | not read again | of a perfect cache |\n" + "|---" * 9 + "|")
    best = {}
    for name, of_rounds in runs.items():
        rounds = [numbers_of(run) for run in of_rounds]
        best[name] = top = max(rounds, key=lambda one: one["rate"])
        rates = ", ".join(f"{one['rate']:.1f}" for one in rounds)
        print(f"| {name} | {top['made']} | {rates} | {top['rate']:.1f} | "
              f"{top['first_median']:.2f}, {top['first_longest']:.2f} | {top['last_median']:.2f}, "
              f"{top['last_longest']:.2f} | {top['prompt']} | {100 * top['cached']:.1f} % | "
              f"{100 * top['of_perfect']:.1f} % |")
    if "llama.cpp" in best and "Switchyard" in best:
        ours, theirs = best["Switchyard"], best["llama.cpp"]
        print(f"\nours / llama.cpp: tokens/s {ours['rate'] / theirs['rate']:.2f} (wanted: 1.5 or more), "
              f"first token of the last turn {ours['last_median'] / theirs['last_median']:.2f} (0.5 or less), "
              f"of turn 1 {ours['first_median'] / theirs['first_median']:.2f}")


def check_equal(args, folder):
    """Returns an exit status: 1 where an answer is not the same."""
    fixed = "deterministic_batches=true"
    first = run_ours(args, folder, None, fixed)
    said = [[turn["text"] for turn in chat] for chat in first["chats"]]
    second = run_ours(args, folder, said, fixed, "enable_prefix_caching=false")
    pairs = [(i, k, turn["text"], other["text"])
             for i, (chat, others) in enumerate(zip(first["chats"], second["chats"]))
             for k, (turn, other) in enumerate(zip(chat, others))]
    different = [(i, k) for i, k, text, other in pairs if text != other]
    report({"with reuse": [first], "without": [second]})
    print(f"\nequal answers: {len(pairs) - len(different)} of {len(pairs)}"
          + (f"; not those of (chat, turn) {different[:10]}" if different else ""))
    return 1 if different or not any(turn["cached"] for chat in first["chats"] for turn in chat) else 0


def main():
    args = arguments()
    if args.run_llama:
        return serve_llama(args)
    folder = pathlib.Path(args.folder).resolve()
    gguf_file = folder / f"{args.format}.gguf"
    make_models(args, folder, gguf_file)
    if args.equal:
        sys.exit(check_equal(args, folder))
    runs = {}
    for _ in range(args.rounds):
        if not args.only_llama:
            runs.setdefault("Switchyard", []).append(run_ours(args, folder))
        if not args.only_ours:
            runs.setdefault("llama.cpp", []).append(run_theirs(args, gguf_file))
    if "llama.cpp" in runs:
        print(runs["llama.cpp"][0]["version"], end="; ")
    print(f"{args.threads} threads, {args.chats} chats of {args.turns} turns, {args.format}\n")
    report(runs)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(runs, indent=1))


if __name__ == "__main__":
    main()

"""Reading a prompt and making tokens against llama.cpp: one random qwen3-moe as a Hugging Face folder and as GGUF.

    python3 -m venv ~/llama && ~/llama/bin/pip install xllamacpp gguf numpy
    ~/llama/bin/python bench/peers/compare_llama.py --folder /tmp/llama --format int4

--format: bfloat16 on both sides; int8 against Q8_0; int4 against Q4_0 (with the head in int8 and Q8_0). Ours are made
from the bfloat16 weights on load, llama.cpp's by gguf's quantizers from the same.

Both go on greedily from the same tokens, in turns, with equal threads, and are read by the clocks that they print. The
weights that a token reads are larger than caches. llama.cpp takes what the processor has (its library is built for all
and cannot be capped from outside); Switchyard takes it, too, and each of --isa.

--texts 8: servers instead, eight requests at once with prompts that differ, and the tokens of all over the time from the
first request to the last answer.
"""

import argparse
import concurrent.futures
import http.client
import json
import os
import pathlib
import signal
import statistics
import struct
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
WORDS = "Wagons onto tracks, tokens onto experts. "


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for key, default in (("emb", 1024), ("layers", 8), ("experts", 64), ("topk", 8), ("mlp", 384), ("heads", 16),
                         ("kv_heads", 4), ("head_dim", 64), ("vocab", 32000), ("tokens", 128), ("threads", 2),
                         ("rounds", 3)):
        parser.add_argument(f"--{key}", type=int, default=default)
    parser.add_argument("--format", choices=("bfloat16", "int8", "int4"), default="bfloat16")
    parser.add_argument("--prompt", type=int, default=512, help="tokens that are read")
    parser.add_argument("--texts", type=int, default=1, help="more than one: so many at once, from servers")
    parser.add_argument("--isa", default="avx2", help="caps of SWITCHYARD_ISA, with commas between")
    parser.add_argument("--folder", required=True, help="for the weights; those that are there are used again")
    parser.add_argument("--switchyard", default=str(HERE.parents[1] / "build/release/switchyard"))
    parser.add_argument("--json", help="a file for all numbers")
    parser.add_argument("--run-llama", help=argparse.SUPPRESS)
    return parser.parse_args()


def shapes(args):
    """Hugging Face names of all tensors with their shapes [out, in]."""
    q, kv = args.heads * args.head_dim, args.kv_heads * args.head_dim
    yield "model.embed_tokens.weight", (args.vocab, args.emb)
    for i in range(args.layers):
        layer = f"model.layers.{i}."
        yield layer + "input_layernorm.weight", (args.emb,)
        yield layer + "post_attention_layernorm.weight", (args.emb,)
        for name, out in (("q", q), ("k", kv), ("v", kv)):
            yield layer + f"self_attn.{name}_proj.weight", (out, args.emb)
        yield layer + "self_attn.o_proj.weight", (args.emb, q)
        yield layer + "self_attn.q_norm.weight", (args.head_dim,)
        yield layer + "self_attn.k_norm.weight", (args.head_dim,)
        yield layer + "mlp.gate.weight", (args.experts, args.emb)
        for e in range(args.experts):
            for name, shape in (("gate", (args.mlp, args.emb)), ("up", (args.mlp, args.emb)),
                                ("down", (args.emb, args.mlp))):
                yield layer + f"mlp.experts.{e}.{name}_proj.weight", shape
    yield "model.norm.weight", (args.emb,)
    yield "lm_head.weight", (args.vocab, args.emb)


def random_weights(args):
    """bfloat16 as uint16: norms are one, the others normal, so that logits and choices of experts spread."""
    import numpy

    draw = numpy.random.default_rng(1)
    weights = {}
    for name, shape in shapes(args):
        x = numpy.ones(shape, numpy.float32)
        if len(shape) == 2:
            x = draw.standard_normal(shape, numpy.float32)
            if name != "model.embed_tokens.weight":
                x /= numpy.sqrt(numpy.float32(shape[1]))
        weights[name] = ((x.view(numpy.uint32) + 0x8000) >> 16).astype(numpy.uint16)
    return weights


def byte_vocabulary(args):
    """Tokens with their ids, and merges: bytes, and words that no text has, so that sampling chooses among as many
    tokens as the model has."""
    characters = [chr(i) for i in (*range(33, 127), *range(161, 173), *range(174, 256))]
    characters += [chr(256 + i) for i in range(256 - len(characters))]
    return {token: i for i, token in enumerate(characters + [f"word{i}" for i in range(256, args.vocab)])}, []


def write_hugging_face(args, weights, folder, positions=4096, vocabulary=byte_vocabulary, added_tokens=()):
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "dtype": "bfloat16", "hidden_act": "silu",
        "attention_bias": False, "bos_token_id": None, "eos_token_id": None, "decoder_sparse_step": 1,
        "head_dim": args.head_dim, "hidden_size": args.emb, "intermediate_size": args.mlp, "mlp_only_layers": [],
        "max_position_embeddings": positions, "moe_intermediate_size": args.mlp, "norm_topk_prob": True,
        "num_attention_heads": args.heads, "num_experts_per_tok": args.topk, "num_hidden_layers": args.layers,
        "num_key_value_heads": args.kv_heads, "num_local_experts": args.experts, "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}, "tie_word_embeddings": False,
        "use_sliding_window": False, "vocab_size": args.vocab}
    header, at = {}, 0
    for name, x in weights.items():
        header[name] = {"dtype": "BF16", "shape": list(x.shape), "data_offsets": [at, at + x.nbytes]}
        at += x.nbytes
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for x in weights.values():
            file.write(x.tobytes())
    vocab, merges = vocabulary(args)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": list(added_tokens), "normalizer": None,
        "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "vocab": vocab,
                  "merges": merges}}))
    (folder / "config.json").write_text(json.dumps(config, indent=1))  # last: the folder is whole


def add_byte_vocabulary(writer, args):
    """A vocabulary of bytes and of words that no text has."""
    import gguf

    kinds = gguf.TokenType
    tokens = [f"<0x{i:02X}>" for i in range(256)] + ["<unk>", "<s>", "</s>"]
    token_types = [kinds.BYTE] * 256 + [kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL]
    tokens += [f"word{i}" for i in range(len(tokens), args.vocab)]
    token_types += [kinds.NORMAL] * (args.vocab - len(token_types))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * args.vocab)
    writer.add_token_types([int(t) for t in token_types])
    writer.add_unk_token_id(256)
    writer.add_bos_token_id(257)
    writer.add_eos_token_id(258)
    writer.add_add_bos_token(False)


def write_gguf(args, weights, path, positions=4096, add_vocabulary=add_byte_vocabulary):
    import gguf
    import numpy

    types = gguf.GGMLQuantizationType
    matrices = {"bfloat16": types.BF16, "int8": types.Q8_0, "int4": types.Q4_0}[args.format]
    head = types.BF16 if args.format == "bfloat16" else types.Q8_0

    writer = gguf.GGUFWriter(str(path) + ".part", "qwen3moe")
    writer.add_context_length(positions)
    writer.add_embedding_length(args.emb)
    writer.add_feed_forward_length(args.mlp)
    writer.add_expert_feed_forward_length(args.mlp)
    writer.add_block_count(args.layers)
    writer.add_head_count(args.heads)
    writer.add_head_count_kv(args.kv_heads)
    writer.add_key_length(args.head_dim)
    writer.add_value_length(args.head_dim)
    writer.add_rope_freq_base(1e6)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_expert_count(args.experts)
    writer.add_expert_used_count(args.topk)
    writer.add_vocab_size(args.vocab)
    add_vocabulary(writer, args)

    def add(name, x):
        kind = head if name in ("output.weight", "token_embd.weight") else matrices
        if x.ndim == 1 or "gate_inp" in name:  # llama.cpp multiplies these in float32
            writer.add_tensor(name, (x.astype(numpy.uint32) << 16).view(numpy.float32))
        elif kind == types.BF16:
            writer.add_tensor(name, x.view(numpy.uint8), raw_dtype=kind)
        else:
            blocks = gguf.quants.quantize((x.astype(numpy.uint32) << 16).view(numpy.float32), kind)
            writer.add_tensor(name, blocks, raw_dtype=kind)

    add("token_embd.weight", weights["model.embed_tokens.weight"])
    for i in range(args.layers):
        of, to = f"model.layers.{i}.", f"blk.{i}."
        for ours, theirs in (("input_layernorm", "attn_norm"), ("self_attn.q_proj", "attn_q"),
                             ("self_attn.k_proj", "attn_k"), ("self_attn.v_proj", "attn_v"),
                             ("self_attn.o_proj", "attn_output"), ("self_attn.q_norm", "attn_q_norm"),
                             ("self_attn.k_norm", "attn_k_norm"), ("post_attention_layernorm", "ffn_norm"),
                             ("mlp.gate", "ffn_gate_inp")):
            add(f"{to}{theirs}.weight", weights[f"{of}{ours}.weight"])
        for name in ("gate", "up", "down"):
            experts = [weights[f"{of}mlp.experts.{e}.{name}_proj.weight"] for e in range(args.experts)]
            add(f"{to}ffn_{name}_exps.weight", numpy.stack(experts))
    add("output_norm.weight", weights["model.norm.weight"])
    add("output.weight", weights["lm_head.weight"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(str(path) + ".part", path)


def bytes_of_token(args):
    """Of weights that a token reads: all but the embedding, of experts those of one token."""
    size = 0
    for name, shape in shapes(args):
        elements = shape[0] * (shape[1] if len(shape) == 2 else 1)
        if name != "model.embed_tokens.weight":
            bits = {"bfloat16": 16, "int8": 8.5, "int4": 4.5}[args.format]
            if name == "lm_head.weight" and args.format == "int4":
                bits = 8.5
            if len(shape) == 1 or ".gate." in name:
                bits = 16
            size += bits / 8 * elements * (args.topk / args.experts if ".experts." in name else 1)
    return size


def at_once(ask, texts):
    """Seconds that all take, and the answers."""
    with concurrent.futures.ThreadPoolExecutor(len(texts)) as pool:
        begin = time.perf_counter()
        answers = list(pool.map(ask, texts))
        return time.perf_counter() - begin, answers


def different_prompts(args):
    return [(f"{i} " + WORDS * args.prompt)[:args.prompt] for i in range(args.texts)]


def switchyard_server(args, folder, isa):
    """Tokens and seconds of --texts requests at once."""
    file = folder / "server.json"
    file.unlink(missing_ok=True)
    form = "stored" if args.format == "bfloat16" else args.format
    command = [args.switchyard, "serve", str(folder), "weight_dtype=bfloat16", "dtype=bfloat16", f"weight_format={form}",
               f"max_target_length={args.prompt + args.tokens + 1}", f"per_device_batch_size={args.texts}",
               "enable_prefix_caching=false", "--port", "0", "--json", str(file)]
    cap = {"SWITCHYARD_ISA": isa} if isa else {}
    cores = ",".join(str(c) for c in sorted(os.sched_getaffinity(0))[:args.threads])
    server = subprocess.Popen(["taskset", "-c", cores, *command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                              text=True, env=dict(os.environ, **cap))
    while not file.exists():
        if server.poll() is not None:
            sys.exit(f"switchyard serve fails: {server.stderr.read()[-2000:]}")
        time.sleep(0.05)
    port = json.loads(file.read_text())["port"]

    def ask(text):
        connection = http.client.HTTPConnection("127.0.0.1", port)
        body = {"prompt": text, "max_tokens": args.tokens, "temperature": 0}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        content = json.loads(answer.read())
        if answer.status != 200:
            sys.exit(f"switchyard serve: {content}")
        return content["usage"]["completion_tokens"]

    at_once(ask, different_prompts(args))  # warms up
    seconds, made = at_once(ask, different_prompts(args))
    server.send_signal(signal.SIGTERM)
    server.wait()
    return {"seconds": seconds, "tokens": sum(made)}


def compare_servers(args, folder, gguf_file):
    ours, theirs = {isa: [] for isa in [*args.isa.split(","), ""]}, []
    for _ in range(args.rounds):
        for isa, runs in ours.items():
            runs.append(switchyard_server(args, folder, isa))
        theirs.append(llama(args, gguf_file, None))
    print(f"{theirs[0]['version']}; {args.threads} threads, {args.texts} texts of {args.prompt} tokens read\n")
    print("| | tokens made, of each round | tokens/s, best | median | ratio of best | of medians |\n" + "|---" * 6 + "|")
    rates = lambda runs: [r["tokens"] / r["seconds"] for r in runs]
    for name, runs in [(f"Switchyard {isa or 'as the machine is'}", r) for isa, r in ours.items()] + [("llama.cpp", theirs)]:
        a, b = max(rates(runs)), statistics.median(rates(runs))
        print(f"| {name} | {', '.join(str(r['tokens']) for r in runs)} | {a:.1f} | {b:.1f} | {a / max(rates(theirs)):.2f} | "
              f"{b / statistics.median(rates(theirs)):.2f} |")
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps({"switchyard": ours, "llama": theirs}, indent=1))


def run_llama(args):
    """In a process of its own: prints tokens, seconds of the prompt and of a token, and versions as one line of JSON."""
    from importlib.metadata import version

    import xllamacpp

    work = json.loads(args.run_llama)
    params = xllamacpp.CommonParams()
    params.model.path = work["model"]
    texts = work.get("texts")
    params.n_ctx = 1024 * (len(texts) if texts else 1)
    params.n_parallel = len(texts) if texts else 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = args.threads
    server = xllamacpp.Server(params)
    request = {"prompt": work["prompt"], "n_predict": args.tokens, "temperature": 0, "ignore_eos": True,
               "cache_prompt": False, "top_k": 1, "repeat_penalty": 1}

    def complete(request):
        answer = server.handle_completions(request)
        return json.loads(answer) if isinstance(answer, str) else answer

    if texts:
        at_once(lambda text: complete({**request, "prompt": text}), texts)  # warms up
        seconds, answers = at_once(lambda text: complete({**request, "prompt": text}), texts)
        made = sum(answer["usage"]["completion_tokens"] for answer in answers)
        print("\n" + json.dumps({"seconds": seconds, "tokens": made,
                                 "version": f"xllamacpp {version('xllamacpp')}, gguf {version('gguf')}",
                                 "system": xllamacpp.get_system_info()}), flush=True)
        os._exit(0)

    # Also warms up: which tokens, is said beside their probabilities only.
    content = complete({**request, "n_probs": 1})["choices"][0]["logprobs"]["content"]
    timings = [complete(request)["timings"] for _ in range(2)]
    print("\n" + json.dumps({"seconds": min(t["predicted_ms"] * 1e-3 / t["predicted_n"] for t in timings),
                             "prompt_seconds": min(t["prompt_ms"] * 1e-3 for t in timings),
                             "prompt_tokens": timings[0]["prompt_n"], "tokens": [one["id"] for one in content],
                             "version": f"xllamacpp {version('xllamacpp')}, gguf {version('gguf')}",
                             "system": xllamacpp.get_system_info()}), flush=True)
    os._exit(0)  # the server's threads would keep the process


def llama(args, gguf_file, prompt):
    work = {"model": str(gguf_file), "prompt": prompt}
    if args.texts > 1:
        work["texts"] = different_prompts(args)
    work = json.dumps(work)
    own = [f"--{key}={getattr(args, key)}" for key in ("tokens", "threads", "folder")]  # what run_llama reads
    done = subprocess.run([sys.executable, __file__, *own, "--run-llama", work], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"llama.cpp fails: {done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def switchyard(args, folder, isa):
    file = folder / "generated.json"
    prompt = (WORDS * args.prompt)[:args.prompt]  # a token a byte
    form = "stored" if args.format == "bfloat16" else args.format
    command = [args.switchyard, "generate", str(folder), f"prompt={prompt}", "weight_dtype=bfloat16",
               "dtype=bfloat16", f"weight_format={form}", f"max_target_length={args.prompt + args.tokens}",
               f"max_prefill_predict_length={args.prompt}", "--json", str(file)]
    cap = {"SWITCHYARD_ISA": isa} if isa else {}
    # Its threads are the cores that it may use.
    cores = ",".join(str(c) for c in sorted(os.sched_getaffinity(0))[:args.threads])
    subprocess.run(["taskset", "-c", cores, *command], check=True, capture_output=True, env=dict(os.environ, **cap))
    result = json.loads(file.read_text())
    return {"seconds": result["decode_seconds"] / result["decode_steps"],
            "prompt_seconds": result["prefill_seconds"], "tokens": result["results"][0]["tokens"],
            "prompt_tokens": len(result["prompt_tokens"]), "prompt": result["prompt_tokens"], "version": result["version"]}


def read_bandwidth(args, folder):
    file = folder / "peak.json"
    subprocess.run([args.switchyard, "bench", "peak", "--json", str(file)], check=True, capture_output=True)
    return max(r["bytes"] / r["best_seconds"] for r in json.loads(file.read_text())["results"]
               if r["shape"].get("what") == "read")


def main():
    args = arguments()
    if args.run_llama:
        return run_llama(args)
    folder = pathlib.Path(args.folder)
    gguf_file = folder / f"{args.format}.gguf"
    if not (folder / "config.json").exists() or not gguf_file.exists():
        weights = random_weights(args)
        if not (folder / "config.json").exists():
            write_hugging_face(args, weights, folder)
        write_gguf(args, weights, gguf_file)
    if args.texts > 1:
        return compare_servers(args, folder, gguf_file)
    ours, theirs, reads = {isa: [] for isa in [*args.isa.split(","), ""]}, [], []
    for _ in range(args.rounds):
        reads.append(read_bandwidth(args, folder))
        for isa, runs in ours.items():
            runs.append(switchyard(args, folder, isa))
        theirs.append(llama(args, gguf_file, ours[""][0]["prompt"]))
    size, read = bytes_of_token(args), max(reads)
    print(f"{ours[''][0]['version']} of Switchyard; {theirs[0]['version']}; llama.cpp: {theirs[0]['system']}")
    print(f"{args.threads} threads, {size / 1e6:.0f} MB of weights a token, {read / 1e9:.1f} GB/s read in these runs\n")
    print("| | tokens/s, best | median | GB/s of weights | of reading | ratio of best | of medians | prompt tokens/s, best "
          "| ratio of best |\n" + "|---" * 9 + "|")

    def prompt_rate(runs):
        return max(r["prompt_tokens"] / r["prompt_seconds"] for r in runs)

    best, middle = min(r["seconds"] for r in theirs), statistics.median(r["seconds"] for r in theirs)
    for name, runs in [(f"Switchyard {isa or 'as the machine is'}", runs) for isa, runs in ours.items()] + [
            ("llama.cpp", theirs)]:
        a, b = min(r["seconds"] for r in runs), statistics.median(r["seconds"] for r in runs)
        print(f"| {name} | {1 / a:.1f} | {1 / b:.1f} | {size / a / 1e9:.1f} | {100 * size / a / read:.0f} % | "
              f"{best / a:.2f} | {middle / b:.2f} | {prompt_rate(runs):.0f} | {prompt_rate(runs) / prompt_rate(theirs):.2f} |")
    for name, runs in ours.items():
        same = [x == y for x, y in zip(runs[0]["tokens"], theirs[0]["tokens"])]
        equal = same.index(False) if False in same else len(same)
        print(f"first tokens that are the same, {name or 'as the machine is'}: {equal} of {len(same)}")
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps({"switchyard": ours, "llama": theirs, "read": reads}, indent=1))


if __name__ == "__main__":
    main()

"""Whether our reader and the reference reader of safetensors files accept and reject the same files.

    python3 -m venv ~/peers && ~/peers/bin/pip install -r tests/peers/requirements.txt
    cmake --build build/release --target peer_safetensors_check
    ~/peers/bin/python tests/peers/safetensors_mutants.py build/release/peer_safetensors_check --count 100000

Valid files are mutated (bytes, header length, JSON text, JSON structure); each mutant goes to both. Where ours is stricter on
purpose, STRICTER names the rule; any other disagreement is printed and the exit status is 1.
"""

import argparse
import collections
import json
import random
import re
import struct
import subprocess
import sys

import safetensors

# Rules of ours that the reference reader does not have: a pattern in our message, and why we have the rule.
STRICTER = [
    (r"does not begin with '{'", "a header begins with {, as the format says; the reference skips white space"),
    (r"duplicate key", "a key twice: readers disagree about which one counts"),
    (r"unknown key", "a key that the format does not have is a mistake or a newer format"),
    (r'"__metadata__" is null', "metadata is an object of strings"),
    (r"is an array, expected an object", "a tensor is an object; the reference takes a list of its values too"),
    (r"more than 32 dimensions", "no tensor has so many"),
    (r"overflows 64 bits", "a product of dims that overflows is refused also when another dim is 0"),
]

DTYPES = ["F32", "F16", "BF16", "F64", "I64", "I32", "I16", "I8", "U8", "U16", "U32", "U64", "BOOL", "F8_E4M3",
          "F8_E5M2", "F8_E8M0", "F4", "F6_E2M3", "F6_E3M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "C64", "f32", "Q8", ""]
NUMBERS = [0, 1, 2, 3, 4, 7, 8, 15, 16, 255, 2**31, 2**32, 2**53, 2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64,
           -1, -0.0, 1.0, 1.5, 1e3, None, True, "4", [], [1], {}]


def file_of(header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def valid(random_):
    """A file that follows the rules, as header (dict) and data."""
    header, end = {}, 0
    bits = {"F32": 32, "F16": 16, "BF16": 16, "I64": 64, "U8": 8, "BOOL": 8, "F8_E4M3": 8}
    for i in range(random_.randrange(5)):
        dtype = random_.choice(sorted(bits))
        shape = [random_.randrange(4) for _ in range(random_.randrange(4))]
        size = bits[dtype] // 8
        for d in shape:
            size *= d
        header[random_.choice(["a", "b", "layer.0", "é", "x" * 40, ""]) + str(i)] = {
            "dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    if random_.random() < 0.5:
        header["__metadata__"] = {"format": "pt", "k": "v"}
    items = list(header.items())
    random_.shuffle(items)
    return dict(items), bytes(random_.randrange(256) for _ in range(end))


def mutate_structure(random_, header, data):
    header = json.loads(json.dumps(header))
    tensors = [k for k in header if k != "__metadata__"]
    for _ in range(random_.choice([1, 1, 2])):
        kind = random_.randrange(12)
        if not tensors or kind == 0:
            header["__metadata__"] = random_.choice([{}, None, [], {"a": 1}, {"a": None}, {"a": "b"}, "x", {"a": {}}])
            continue
        tensor = header[random_.choice(tensors)]
        if not isinstance(tensor, dict):
            continue
        if kind == 1:
            tensor["dtype"] = random_.choice(DTYPES + NUMBERS)
        elif kind == 2:
            tensor["shape"] = random_.choice([[random_.choice(NUMBERS) for _ in range(random_.randrange(4))],
                                              [1] * random_.choice([31, 32, 33, 100]), random_.choice(NUMBERS)])
        elif kind == 3:
            tensor["data_offsets"] = [random_.choice(NUMBERS) for _ in range(random_.choice([0, 1, 2, 2, 2, 3]))]
        elif kind == 4 and isinstance(tensor.get("data_offsets"), list) and tensor["data_offsets"]:
            i = random_.randrange(len(tensor["data_offsets"]))
            if isinstance(tensor["data_offsets"][i], int):
                tensor["data_offsets"][i] += random_.choice([-1, 1, 4, -4])
        elif kind == 5:
            tensor.pop(random_.choice(["dtype", "shape", "data_offsets"]), None)
        elif kind == 6:
            tensor[random_.choice(["extra", "Dtype", "shape "])] = random_.choice(NUMBERS)
        elif kind == 7:
            header[random_.choice(tensors)] = random_.choice([None, 1, [], "x", ["F32", [1], [0, 4]], {}])
        elif kind == 8:
            header[random_.choice(["new", "__metadata", "__METADATA__"])] = dict(tensor)
        elif kind == 9:
            a, b = random_.choice(tensors), random_.choice(tensors)
            header[a], header[b] = header[b], header[a]
        elif kind == 10:  # a shape of the same size, or types of the same width
            tensor["dtype"] = {"F32": "I32", "F16": "BF16", "U8": "I8", "I64": "F64"}.get(str(tensor.get("dtype")), "F32")
        else:
            data = data + bytes(random_.choice([1, 4]))
    return file_of(header, data)


def mutate_text(random_, header, data):
    text = bytearray(json.dumps(header, ensure_ascii=random_.random() < 0.5).encode())
    for _ in range(random_.choice([1, 1, 2, 3])):
        at = random_.randrange(len(text) + 1)
        kind = random_.randrange(6)
        if kind == 0 and at < len(text):
            text[at] = random_.randrange(256)
        elif kind == 1:
            text[at:at] = random_.choice([b" ", b"\n", b"\t", b",", b"{", b"}", b"[", b"]", b'"', b"\\u0041", b"\\ud800",
                                          b"\\n", b"0", b"-", b"1", b"e1", b".0", b"\x00", b"\xff", b"\xef\xbb\xbf", b"/**/"])
        elif kind == 2 and at < len(text):
            del text[at:at + random_.choice([1, 2, 5])]
        elif kind == 3:
            end = random_.randrange(at, len(text) + 1)
            text[at:at] = text[at:end]
        elif kind == 4:
            text += random_.choice([b" ", b"   ", b"\n", b"\x00", b"x", b"{}"])
        else:
            text[:0] = random_.choice([b" ", b"\n", b"\xef\xbb\xbf", b"["])
    return file_of(bytes(text), data)


def mutate_bytes(random_, header, data):
    file = bytearray(file_of(header, data))
    for _ in range(random_.choice([1, 1, 2, 4])):
        kind = random_.randrange(5)
        if kind == 0:
            file[random_.randrange(min(8, len(file)))] = random_.randrange(256)
        elif kind == 1:
            file[:8] = struct.pack("<Q", random_.choice([0, 1, 7, 8, len(file), len(file) - 8, len(file) - 9, 10**8, 10**8 + 1,
                                                        2**63, 2**64 - 1]) % 2**64)
        elif kind == 2 and len(file) > 1:
            file[random_.randrange(len(file))] ^= 1 << random_.randrange(8)
        elif kind == 3:
            del file[random_.randrange(len(file) + 1):]
        else:
            file += bytes(random_.randrange(9))
        if len(file) < 8:
            break
    return bytes(file)


def mutant(random_):
    header, data = valid(random_)
    how = random_.choice([mutate_structure, mutate_structure, mutate_text, mutate_bytes])
    return how(random_, header, data) if random_.random() < 0.98 else file_of(header, data)


def reference_verdict(file):
    try:
        safetensors.deserialize(file)
        return "ok"
    except Exception as error:  # what it raises differs between versions
        return str(error)


def our_verdicts(program, files):
    packed = b"".join(struct.pack("<Q", len(f)) + f for f in files)
    lines = subprocess.run([program], input=packed, stdout=subprocess.PIPE, check=True).stdout.decode(errors="replace")
    verdicts = lines.split("\n")[:-1]
    assert len(verdicts) == len(files), f"{len(verdicts)} verdicts for {len(files)} files"
    return verdicts


def rule_of(verdict):
    for pattern, reason in STRICTER:
        if re.search(pattern, verdict):
            return reason
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--count", type=int, default=100000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    random_ = random.Random(arguments.seed)
    both, stricter, wrong = collections.Counter(), collections.Counter(), []
    for begin in range(0, arguments.count, 5000):
        files = [mutant(random_) for _ in range(min(5000, arguments.count - begin))]
        for file, ours in zip(files, our_verdicts(arguments.program, files)):
            theirs = reference_verdict(file)
            if (ours == "ok") == (theirs == "ok"):
                both["accept" if ours == "ok" else "reject"] += 1
            elif ours != "ok" and rule_of(ours):
                stricter[rule_of(ours)] += 1
            else:
                wrong.append((file, ours, theirs))
    print(f"safetensors {safetensors.__version__}: {arguments.count} files, seed {arguments.seed}: both accept "
          f"{both['accept']}, both reject {both['reject']}, stricter on purpose {sum(stricter.values())}, "
          f"other disagreements {len(wrong)}")
    for reason, count in stricter.most_common():
        print(f"  {count:6}  {reason}")
    for file, ours, theirs in wrong[:20]:
        print(f"disagreement: {file[:300]!r}\n  ours:   {ours}\n  theirs: {theirs}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()

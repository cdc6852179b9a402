"""Compares `switchyard tokenize` with the public libraries, id for id and text for text.

Usage:  python compare_tokenizers.py SWITCHYARD [--texts 10000] [--cases llama3,t5] [--corpus FILE...] [--keep DIR] [--speed]

Trains or writes a small tokenizer of every kind, makes random and multilingual texts, and lets the library and the
program encode each text and decode its ids. Exit status 1 when anything differs; the first differences are shown.
Needs tokenizers, sentencepiece and tiktoken (requirements.txt).
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import unicodedata

import tokenizer_cases

FIXED = ["", " ", "a", "\n", "\r\n", "Hello, world! It's the GNU's licence.", "  two  spaces\n\n\nand lines \r\n", "x\ty\t\tz   ",
         "12345678 and 3.14159, ½ ٣ Ⅻ ①", "naïve café Ångström — “quotes” … €", "日本語のテキストと한국어 中文字符、。",
         "👩‍👩‍👧 emoji 🏳️‍🌈! 👍🏽 🇫🇷", "e\u0301 vs \u00e9, ﬁ ﬄ ligature, ㎏ ｆｕｌｌ ﾊﾝｶｸ ﾞ", "WE'LL, they'Re, I'D, don't 'tis ſ's", "שָׁלוֹם مَرْحَبًا 123 \u200fabc\u200e",
         "<s>a</s> <|end|>b <|end|>  c<unk><pad>[CLS] x [SEP]", "\u2581under \u2581\u2581 bars", "\u00a0nbsp\u2003em\u3000ideo\u200bzero\u2060joiner\ufeff",
         "void f(int x) { return x<<2; } // ok\n\t\treturn;\n", "İ ı ß ΑΣ ς ǅ Ǆ K Å", "~~~$$$^^^```|||+++", "trailing space ", "no\u0085next \u2028 \u2029", "\x00\x01\x07\x1b\x7f\x9f",
         "हिन्दी क्षत्रिय ไทยไม่มีวรรค தமிழ் বাংলা", "a" * 300, " " * 200, "ab" * 150 + " x", "\u0301\u0301 lone marks", "\ufffd\ufffe\uffff", "𝔘𝔫𝔦 𐍈 \U0010ffff", "\u180e\u180e x"]

WORDS = ("the The THE of and licence License software you're don't I'll we've naïve über größer 'tis 2024 3.14 1,000,000 0x1F "
         "日本 語 中文 한국어 привет мир שלום مرحبا नमस्ते ไทย 🙂 👍🏽 ünïcödé e\u0301a\u0308 ﬁne Ⅷ ½ ...").split()
SPECIAL = ["<s>", "</s>", "<unk>", "<pad>", "<|begin|>", "<|end|>", "<|pad|>", "GNU", "gnu", "word", "[CLS]", "[SEP]", "[MASK]", "[UNK]"]
SPACES = [" ", " ", " ", "  ", "   ", "\n", "\n\n", "\t", "\r\n", "\u00a0", "\u3000", "\u2003", "\u200b", " \n "]
RANGES = [(0x20, 0x7e), (0xa0, 0xff), (0x100, 0x24f), (0x300, 0x36f), (0x370, 0x3ff), (0x400, 0x4ff), (0x590, 0x5ff), (0x600, 0x6ff),
          (0x900, 0x97f), (0xe00, 0xe7f), (0x1100, 0x11ff), (0x1e00, 0x1eff), (0x2000, 0x206f), (0x2070, 0x209f), (0x20a0, 0x20cf),
          (0x2100, 0x218f), (0x2460, 0x24ff), (0x2580, 0x259f), (0x3000, 0x303f), (0x3040, 0x30ff), (0x3130, 0x318f), (0x3300, 0x33ff),
          (0x4e00, 0x9fff), (0xac00, 0xd7a3), (0xf900, 0xfaff), (0xfb00, 0xfb4f), (0xfe00, 0xfe0f), (0xff00, 0xffef), (0x1d400, 0x1d7ff),
          (0x1f300, 0x1faff), (0x20000, 0x2a6df), (0x2f800, 0x2fa1f), (0xe0020, 0xe007f)]


def old_enough(c):
    """Assigned in a Unicode that all libraries know, and no surrogate; later characters may differ by their tables."""
    return unicodedata.category(c) not in ("Cn", "Cs") and unicodedata.ucd_3_2_0.category(c) != "Cn"


def random_character(rng):
    while True:
        kind = rng.random()
        if kind < 0.05:
            return chr(rng.randint(0, 0x1f))
        if kind < 0.1:
            c = chr(rng.randint(0, 0x10ffff))
        else:
            c = chr(rng.randint(*rng.choice(RANGES)))
        if old_enough(c):
            return c


def random_text(rng):
    parts = []
    style = rng.random()
    for _ in range(rng.randint(1, 25)):
        kind = rng.random()
        if kind < 0.35:
            parts.append(rng.choice(WORDS) if style < 0.7 else random_character(rng))
        elif kind < 0.6:
            parts.append(rng.choice(SPACES))
        elif kind < 0.68:
            parts.append(rng.choice(SPECIAL))
        elif kind < 0.76:
            parts.append(str(rng.randint(0, 10 ** rng.randint(1, 12))))
        elif kind < 0.86:
            parts.append("".join(rng.choice("abcdeistnoXYZ'.,-_") for _ in range(rng.randint(1, 12))))
        else:
            parts.append("".join(random_character(rng) for _ in range(rng.randint(1, 4))))
    return "".join(parts)


def make_texts(count):
    rng = random.Random(7)
    return FIXED + [random_text(rng) for _ in range(count)]


def program(binary, path, lines, *options):
    done = subprocess.run([binary, "tokenize", path, "--json-lines", *options], input="\n".join(lines) + "\n", capture_output=True, text=True, encoding="utf-8")
    if done.returncode != 0:
        raise SystemExit(f"{path}: {done.stderr.strip()}")
    return [json.loads(line) for line in done.stdout.split("\n")[:-1]]


def compare(name, kind, texts, wanted, got):
    wrong = [i for i in range(len(texts)) if wanted[i] != got[i]]
    for i in wrong[:3]:
        print(f"  {name} {kind}: text {json.dumps(texts[i])}\n    wanted {wanted[i]!r}\n    got    {got[i]!r}")
    return len(wrong)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("switchyard")
    parser.add_argument("--texts", type=int, default=10000)
    parser.add_argument("--cases", default="")
    parser.add_argument("--corpus", nargs="*", default=[])
    parser.add_argument("--keep", default="")
    parser.add_argument("--speed", action="store_true")
    args = parser.parse_args()
    corpus = args.corpus or tokenizer_cases.default_corpus()
    texts = make_texts(args.texts)
    lines = [json.dumps(t) for t in texts]
    print("versions:", tokenizer_cases.versions(), f"· {len(texts)} texts")
    failed = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or temporary
        os.makedirs(folder, exist_ok=True)
        for case in tokenizer_cases.make_all(folder, corpus, set(filter(None, args.cases.split(",")))):
            ids = [case.encode(t) for t in texts]
            wrong = compare(case.name, "ids", texts, ids, program(args.switchyard, case.path, lines))
            decoded = [case.decode(i) for i in ids]
            wrong_texts = compare(case.name, "text", [str(i) for i in ids], decoded,
                                  program(args.switchyard, case.path, [json.dumps(i) for i in ids], "--decode"))
            print(f"{case.name:24} {sum(map(len, ids)):8} ids   {wrong:5} texts with other ids, {wrong_texts:5} decoded otherwise")
            failed += wrong + wrong_texts
            if args.speed:
                show_speed(args.switchyard, case, corpus)
    sys.exit(1 if failed else 0)


def show_speed(binary, case, corpus):
    """MB/s of documents of some kilobytes: the program with all cores, the library with one thread and as it is."""
    text = "\n".join(open(f, encoding="utf-8", errors="replace").read() for f in corpus)
    documents = [text[i:i + 4000] for i in range(0, len(text), 4000)]
    size = sum(len(d.encode()) for d in documents)
    repeats = max(1, 20_000_000 // size)
    payload = ("\n".join(json.dumps(d) for d in documents) + "\n") * repeats
    start = time.perf_counter()
    program_start = subprocess.run([binary, "tokenize", case.path, "--json-lines"], input='""\n', capture_output=True, text=True)
    begin = time.perf_counter()
    subprocess.run([binary, "tokenize", case.path, "--json-lines"], input=payload, capture_output=True, text=True, encoding="utf-8", check=True)
    ours = time.perf_counter() - begin - (begin - start)
    begin = time.perf_counter()
    for d in documents:
        case.encode(d)
    theirs = (time.perf_counter() - begin) * repeats
    print(f"  speed: {size * repeats / ours / 1e6:.1f} MB/s, library one thread {size * repeats / theirs / 1e6:.1f} MB/s ({program_start.returncode})")


if __name__ == "__main__":
    main()

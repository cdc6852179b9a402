"""Trains small tokenizers with the public libraries and records what they make of awkward texts.

Usage:  python make_tokenizer.py OUT_DIR CORPUS_FILE... [--texts N]      (needs tokenizers, sentencepiece, tiktoken)
Output: <case>.json | <case>.model | <case>.tiktoken, and cases.json: case -> type, bos, eos, vocab_size, and a list of
        [text, ids, decoded text].
"""

import base64
import io
import json
import os
import random
import sys
import tempfile

import sentencepiece
import tiktoken
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "peers"))
from tokenizer_cases import encode_pieces, precompiled  # noqa: E402

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
FIXED = ["", " ", "a", "Hello, world! It's the GNU's licence.", "  two  spaces\n\n\nand lines \r\n", "x\ty\t\tz   ",
         "12345678 and 3.14159, ½ and ٣", "naïve café Ångström — “quotes” … €", "日本語のテキストと한국어 中文字符", "👩‍👩‍👧 emoji 🏳️‍🌈!",
         "e\u0301 combining vs \u00e9, ﬁ ligature, Ⅻ", "WE'LL, they'Re, I'D, don't 'tis", "<|begin|> special <|end|>",
         "a<|end|>b <|end|>  c", "  <|pad|>  strip", "</s><s>x</s> y", "\u2581under \u2581\u2581 bars", "\u00a0nbsp\u2003em\u3000ideo\u200bzero",
         "void f(int x) { return x<<2; } // ok\n\t\treturn;\n", "ſ's İ ı ß", "~~~$$$^^^```|||", "trailing space ", "\n", "no\u0085next"]
ALPHABET = list("aeiostn   \n\t.,'<>|_-0123ABZ") + ["é", "e\u0301", "日", "の", "한", "🙂", "\u2581", "\u00a0", "ß", "\r\n", "'ll", "the", "<|end|>"]


def texts(count):
  rng = random.Random(7)
  return FIXED + ["".join(rng.choice(ALPHABET) for _ in range(rng.randint(1, 40))) for _ in range(count)]


def byte_level(split, files, bos=True, normalizer=None, ignore_merges=False, add_prefix_space=False, use_regex=False):
  t = Tokenizer(models.BPE(ignore_merges=ignore_merges))
  steps = [pre_tokenizers.Split(Regex(p), b, i) for p, b, i in split]
  t.pre_tokenizer = pre_tokenizers.Sequence(steps + [pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space, use_regex=use_regex)])
  if normalizer:
    t.normalizer = normalizer
  t.decoder = decoders.ByteLevel()
  t.train(files, trainers.BpeTrainer(vocab_size=500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
  t.add_special_tokens(["<|begin|>", "<|end|>"])
  t.add_tokens([AddedToken("<|pad|>", lstrip=True, rstrip=True, normalized=False), AddedToken("GNU", normalized=True)])
  if bos:
    t.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
        single="<|begin|> $A", pair=None, special_tokens=[("<|begin|>", t.token_to_id("<|begin|>"))])])
  return t


def characters(files, metaspace):
  t = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
  if metaspace:
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=True)
    t.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
  else:
    t.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    t.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
  special = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
  trained = Tokenizer(models.BPE(unk_token="<unk>"))
  trained.pre_tokenizer = pre_tokenizers.Metaspace()
  trained.train(files, trainers.BpeTrainer(vocab_size=700, special_tokens=special, show_progress=False))
  model = json.loads(trained.to_str())["model"]
  whole = json.loads(t.to_str())
  whole["model"]["vocab"], whole["model"]["merges"] = model["vocab"], model["merges"]
  whole["added_tokens"] = [{"id": i, "content": c, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                            "special": True} for i, c in enumerate(["<unk>", "<s>", "</s>"])]
  t = Tokenizer.from_str(json.dumps(whole))
  t.post_processor = processors.TemplateProcessing(single="<s> $A", pair=None, special_tokens=[("<s>", 1)])
  return t


def charsmap():
  """SentencePiece's table for a few rules of our own, as the Precompiled normalizer has it."""
  rules = {"\uff21": "A", "\ufb01": "fi", "\u00bd": "1/2", "\u2160": "I", "e\u0301": "\u00e9", "\u200b": " ", "\u00ad": "", "\u3000": " "}
  with tempfile.NamedTemporaryFile("w", suffix=".tsv") as f:
    f.write("".join(" ".join(f"{ord(c):X}" for c in k) + "\t" + " ".join(f"{ord(c):X}" for c in v) + "\n" for k, v in rules.items()))
    f.flush()
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(["some words"] * 9), model_writer=model, vocab_size=20, hard_vocab_limit=False,
                                             minloglevel=2, normalization_rule_tsv=f.name)
  return precompiled(model.getvalue())


def unigram(files):
  t = Tokenizer(models.Unigram())
  t.normalizer = normalizers.Sequence([normalizers.Precompiled(charsmap()), normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
  t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
  t.decoder = decoders.Metaspace(prepend_scheme="always")
  t.train(files, trainers.UnigramTrainer(vocab_size=300, special_tokens=["<unk>", "<s>", "</s>"], unk_token="<unk>", show_progress=False))
  t.post_processor = processors.TemplateProcessing(single="$A </s>", pair=None, special_tokens=[("</s>", 2)])
  return t


def bert(files):
  t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
  t.normalizer = normalizers.BertNormalizer()
  t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
  t.decoder = decoders.WordPiece()
  t.train(files, trainers.WordPieceTrainer(vocab_size=400, show_progress=False, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]))
  t.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
  return t


def word_ends(files):
  t = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
  t.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase(), normalizers.StripAccents(), normalizers.Strip()])
  t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Digits(individual_digits=True)])
  t.decoder = decoders.BPEDecoder("</w>")
  t.train(files, trainers.BpeTrainer(vocab_size=400, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False))
  t.add_tokens([AddedToken("GNU", normalized=True, single_word=True)])
  return t


def hugging_face_cases(files):
  yield "llama3", byte_level([(LLAMA3, "isolated", False)], files, ignore_merges=True)
  yield "qwen", byte_level([(QWEN, "isolated", False)], files, bos=False, normalizer=normalizers.NFC())
  yield "deepseek", byte_level([(r"\p{N}{1,3}", "isolated", False), ("[一-龥぀-ゟ゠-ヿ]+", "isolated", False),
                                (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
                                 "isolated", False)], files)
  yield "gpt2", byte_level([], files, bos=False, add_prefix_space=True, use_regex=True)
  yield "behaviors", byte_level([(r"\s", "merged_with_next", False), (",", "merged_with_previous", False), ("[a-d]+", "contiguous", True),
                                 ("-", "removed", False)], files, bos=False)
  yield "llama2", characters(files, False)
  yield "metaspace", characters(files, True)
  yield "unigram", unigram(files)
  yield "bert", bert(files)
  yield "word_ends", word_ends(files)


def main(out, files, count):
  cases = {}
  for name, t in hugging_face_cases(files):
    t.save(os.path.join(out, name + ".json"), pretty=False)
    rows = []
    for x in texts(count):
      ids = t.encode(x, add_special_tokens=False).ids
      rows.append([x, ids, t.decode(ids, skip_special_tokens=True)])
    bos = t.encode("a").ids[0] if name in ("llama3", "deepseek", "llama2", "metaspace", "bert") else None
    eos = t.token_to_id("[SEP]" if name == "bert" else "</s>")
    cases[name] = {"type": "huggingface", "file": name + ".json", "bos": bos, "eos": eos, "vocab_size": t.get_vocab_size(), "texts": rows}

  for name, kind in (("sp_bpe", "bpe"), ("sp_unigram", "unigram")):
    model = io.BytesIO()
    lines = [l for f in files for l in open(f, encoding="utf-8") if l.strip()]
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=model, vocab_size=500, model_type=kind,
                                             byte_fallback=True, minloglevel=2,
                                             normalization_rule_name="identity")
    with open(os.path.join(out, name + ".model"), "wb") as f:
      f.write(model.getvalue())
    sp = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    rows = [[x, encode_pieces(sp, x), sp.decode(encode_pieces(sp, x))] for x in texts(count)]
    cases[name] = {"type": "sentencepiece", "file": name + ".model", "bos": sp.bos_id(), "eos": sp.eos_id(), "vocab_size": sp.vocab_size(), "texts": rows}

  source = byte_level([(LLAMA3, "isolated", False)], files)
  table = {c: b for b, c in tiktoken_alphabet().items()}
  vocab = json.loads(source.to_str())["model"]["vocab"]
  as_bytes = {bytes(table[c] for c in token): i for token, i in vocab.items()}
  order = [bytes([b]) for b in range(256)] + sorted((t for t in as_bytes if len(t) > 1), key=as_bytes.get)
  ranks = {t: i for i, t in enumerate(order)}
  with open(os.path.join(out, "tiktoken.tiktoken"), "wb") as f:
    for token, rank in ranks.items():
      f.write(base64.b64encode(token) + b" " + str(rank).encode() + b"\n")
  tk = tiktoken.Encoding("small", pat_str=LLAMA3, mergeable_ranks=ranks, special_tokens={})
  rows = [[x, tk.encode(x, disallowed_special=()), x] for x in texts(count)]
  cases["tiktoken"] = {"type": "tiktoken", "file": "tiktoken.tiktoken", "bos": len(ranks), "eos": len(ranks) + 1, "vocab_size": len(ranks) + 256, "texts": rows}
  with open(os.path.join(out, "cases.json"), "w", encoding="utf-8") as f:
    json.dump(cases, f, ensure_ascii=True)


def tiktoken_alphabet():
  alphabet, extra = {}, 256
  for b in range(256):
    printable = 0x21 <= b <= 0x7e or 0xa1 <= b <= 0xac or b >= 0xae
    alphabet[b] = chr(b) if printable else chr(extra)
    extra += 0 if printable else 1
  return alphabet


if __name__ == "__main__":
  number = int(sys.argv[sys.argv.index("--texts") + 1]) if "--texts" in sys.argv else 20
  named = sys.argv[2:sys.argv.index("--texts")] if "--texts" in sys.argv else sys.argv[2:]
  main(sys.argv[1], named, number)

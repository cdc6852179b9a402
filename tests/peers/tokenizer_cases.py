"""Small tokenizers of every kind, made with the public libraries. A case: name, path, encode(text), decode(ids)."""

import base64
import collections
import glob
import io
import json
import os
import random
import re
import unicodedata

import sentencepiece
import tiktoken
import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

Case = collections.namedtuple("Case", "name path encode decode")

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
GPT4O = "|".join([r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
                  r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
                  r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
GPT4 = r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"""
GPT2 = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
DEEPSEEK = [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
            r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"]


def versions():
    return {"tokenizers": tokenizers.__version__, "sentencepiece": sentencepiece.__version__, "tiktoken": tiktoken.__version__}


def default_corpus():
    return sorted(f for f in glob.glob("/usr/share/common-licenses/*") if not os.path.islink(f))


MULTILINGUAL = ["日本語のテキストと한국어 中文字符 これは日本語です。", "Привет, мир! Это русский текст.", "שלום עולם مرحبا بالعالم", "नमस्ते दुनिया हिन्दी", "naïve café über größe e\u0301 ﬁ Ⅻ",
                "👩‍👩‍👧 🙂 👍🏽 🏳️‍🌈", "x = 1234567; // \t ok\n\n", "don't can't I'll we've they're"] * 20


def lines_of(corpus):
    return [line for f in corpus for line in open(f, encoding="utf-8", errors="replace") if line.strip()] + MULTILINGUAL


def special(*extra):
    return [AddedToken(t, special=True) for t in ("<|begin|>", "<|end|>") + extra]


def add_tokens(t):
    t.add_special_tokens(special())
    t.add_tokens([AddedToken("<|pad|>", lstrip=True, rstrip=True, normalized=False), AddedToken("GNU", normalized=True),
                  AddedToken("word", single_word=True, normalized=False)])


def byte_level(lines, splits, normalizer=None, ignore_merges=False, add_prefix_space=False, use_regex=False, after=()):
    t = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    steps = [pre_tokenizers.Split(Regex(p), b, i) for p, b, i in splits]
    steps += [pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space, use_regex=use_regex), *after]
    t.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if normalizer:
        t.normalizer = normalizer
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=1500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    add_tokens(t)
    return t


def character_bpe(lines, scheme, byte_fallback=True):
    """As Llama-2 and Mistral: characters with U+2581 for spaces; `scheme` None: by normalizers."""
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    tokens = ["<unk>", "<s>", "</s>"] + ([f"<0x{b:02X}>" for b in range(256)] if byte_fallback else [])
    trained.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=1500, special_tokens=tokens, limit_alphabet=200, show_progress=False))
    t = Tokenizer(models.BPE(byte_fallback=byte_fallback, fuse_unk=byte_fallback, unk_token="<unk>"))
    if scheme is None:
        t.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    else:
        t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=scheme != "never")
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()] + ([decoders.Strip(" ", 1, 0)] if scheme != "never" else [])
    t.decoder = decoders.Sequence(steps)
    whole, model = json.loads(t.to_str()), json.loads(trained.to_str())["model"]
    whole["model"]["vocab"], whole["model"]["merges"] = model["vocab"], model["merges"]
    t = Tokenizer.from_str(json.dumps(whole))
    t.add_special_tokens(["<unk>", "<s>", "</s>"])
    t.add_tokens([AddedToken("GNU", normalized=True), AddedToken("word", single_word=True, normalized=False)])
    t.post_processor = processors.TemplateProcessing(single="<s> $A", pair=None, special_tokens=[("<s>", 1)])
    return t


def unigram(lines, normalizer, byte_fallback=False, scheme="always"):
    t = Tokenizer(models.Unigram())
    t.normalizer = normalizer
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    tokens = ["<unk>", "<s>", "</s>", "<pad>"] + ([f"<0x{b:02X}>" for b in range(256)] if byte_fallback else [])
    t.train_from_iterator(lines, trainers.UnigramTrainer(vocab_size=1200, special_tokens=tokens, unk_token="<unk>", show_progress=False))
    whole = json.loads(t.to_str())
    if byte_fallback:
        whole["model"]["byte_fallback"] = True
        whole["added_tokens"] = [a for a in whole["added_tokens"] if not a["content"].startswith("<0x")]
    t = Tokenizer.from_str(json.dumps(whole))
    t.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme=scheme)]) if byte_fallback else decoders.Metaspace(prepend_scheme=scheme)
    t.post_processor = processors.TemplateProcessing(single="$A </s>", pair=None, special_tokens=[("</s>", 2)])
    return t


def precompiled(model_bytes):
    """precompiled_charsmap of a serialized ModelProto: field 3 (NormalizerSpec), in it field 2; read by hand."""
    def fields(data):
        at = 0
        def varint():
            nonlocal at
            value = shift = 0
            while True:
                b = data[at]
                at += 1
                value |= (b & 127) << shift
                shift += 7
                if b < 128:
                    return value
        while at < len(data):
            key = varint()
            if key & 7 == 0:
                yield key >> 3, varint()
            elif key & 7 == 2:
                size = varint()
                yield key >> 3, data[at:at + size]
                at += size
            else:
                size = 4 if key & 7 == 5 else 8
                yield key >> 3, data[at:at + size]
                at += size
    spec = next(v for k, v in fields(model_bytes) if k == 3)
    return next(v for k, v in fields(spec) if k == 2)


def word_piece(lines, lowercase, strip_accents=None):
    t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    t.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=strip_accents)
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.decoder = decoders.WordPiece()
    t.train_from_iterator(lines, trainers.WordPieceTrainer(vocab_size=1200, limit_alphabet=250, show_progress=False,
                                                           special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]))
    t.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return t


def clip(lines):
    """Word ends marked with </w>, lower case, as CLIP and GPT-1."""
    t = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    t.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase(), normalizers.StripAccents(), normalizers.Strip()])
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Digits(individual_digits=True)])
    t.decoder = decoders.BPEDecoder("</w>")
    t.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=1200, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False))
    return t


def prefixed(lines):
    t = Tokenizer(models.BPE(unk_token="<unk>", continuing_subword_prefix="##", fuse_unk=True))
    t.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKD()])
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation("merged_with_previous")])
    t.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    t.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=900, special_tokens=["<unk>"], continuing_subword_prefix="##", limit_alphabet=120, show_progress=False))
    return t


def word_level(lines):
    t = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    t.normalizer = normalizers.Sequence([normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()])
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.CharDelimiterSplit(" "), pre_tokenizers.FixedLength(4)])
    t.train_from_iterator(lines, trainers.WordLevelTrainer(vocab_size=900, special_tokens=["[UNK]", "[MASK]"], show_progress=False))
    return t


def hugging_face(lines):
    nfc, nfkc = normalizers.NFC, normalizers.NFKC
    table = normalizers.Precompiled(precompiled(train_sentencepiece(lines, "unigram", "nmt_nfkc", False)))
    folded = normalizers.Precompiled(precompiled(train_sentencepiece(lines, "unigram", "nmt_nfkc_cf", False)))
    yield "llama3", lambda: byte_level(lines, [(LLAMA3, "isolated", False)], ignore_merges=True)
    yield "qwen", lambda: byte_level(lines, [(QWEN, "isolated", False)], normalizer=nfc())
    yield "gpt4o", lambda: byte_level(lines, [(GPT4O, "isolated", False)])
    yield "deepseek", lambda: byte_level(lines, [(p, "isolated", False) for p in DEEPSEEK])
    yield "gpt2", lambda: byte_level(lines, [], add_prefix_space=True, use_regex=True)
    yield "falcon", lambda: byte_level(lines, [(r"[\p{P}]", "contiguous", False)], use_regex=True,
                                       after=[pre_tokenizers.Digits(individual_digits=False), pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated", False)])
    yield "behaviors", lambda: byte_level(lines, [(r"\s", "merged_with_next", False), (",", "merged_with_previous", False),
                                                  ("[a-d]+", "contiguous", True), ("-", "removed", False), (r"\w+|\W", "isolated", False)])
    yield "llama2", lambda: character_bpe(lines, None)
    yield "metaspace_first", lambda: character_bpe(lines, "first")
    yield "metaspace_always", lambda: character_bpe(lines, "always", byte_fallback=False)
    yield "metaspace_never", lambda: character_bpe(lines, "never")
    yield "unigram_t5", lambda: unigram(lines, table)
    yield "unigram_xlm", lambda: unigram(lines, normalizers.Sequence([folded, normalizers.Replace(Regex(" {2,}"), " ")]), scheme="first")
    yield "unigram_bytes", lambda: unigram(lines, nfkc(), byte_fallback=True)
    yield "bert_uncased", lambda: word_piece(lines, True)
    yield "bert_cased", lambda: word_piece(lines, False)
    yield "bert_accents", lambda: word_piece(lines, True, strip_accents=False)
    yield "clip", lambda: clip(lines)
    yield "prefixed", lambda: prefixed(lines)
    yield "word_level", lambda: word_level(lines)


def encode_pieces(sp, text):
    """Ids with control tokens and the unknown one found in the text, as transformers and llama.cpp find them."""
    marks = [sp.id_to_piece(i) for i in range(sp.vocab_size()) if sp.is_control(i) or sp.is_unknown(i)]
    ids = []
    for part in re.split("(" + "|".join(map(re.escape, marks)) + ")", text):
        ids += [sp.piece_to_id(part)] if part in marks else sp.encode(part)
    return ids


def train_sentencepiece(lines, kind, rule, byte_fallback, **more):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=model, vocab_size=1000, model_type=kind, byte_fallback=byte_fallback,
                                             normalization_rule_name=rule, minloglevel=2, character_coverage=0.98, **more)
    return model.getvalue()


def sentence_pieces():
    for kind in ("unigram", "bpe"):
        for rule in ("nmt_nfkc", "identity"):
            for fallback in (False, True):
                yield f"sp_{kind}_{rule}" + ("_bytes" if fallback else ""), kind, rule, fallback, {}
    yield "sp_llama", "bpe", "identity", True, {"split_digits": True, "remove_extra_whitespaces": False, "allow_whitespace_only_pieces": True}
    yield "sp_gemma", "bpe", "nfkc", True, {"add_dummy_prefix": False, "remove_extra_whitespaces": False, "user_defined_symbols": ["<|end|>", "word"]}
    yield "sp_unigram_symbols", "unigram", "nmt_nfkc", True, {"user_defined_symbols": ["<|end|>", "word", "GN"]}
    yield "sp_casefold", "unigram", "nmt_nfkc_cf", False, {"treat_whitespace_as_suffix": True}


def alphabet():
    table, extra = {}, 256
    for b in range(256):
        printable = 0x21 <= b <= 0x7e or 0xa1 <= b <= 0xac or b >= 0xae
        table[chr(b) if printable else chr(extra)] = b
        extra += 0 if printable else 1
    return table


# Ranks and split pattern of the published files; Qwen's own code brings a text to NFC first.
RANK_FILES = {"tiktoken_llama3": (0, LLAMA3), "tiktoken_gpt2": (50256, GPT2), "tiktoken_gpt4": (100256, GPT4), "tiktoken_gpt4o": (199998, GPT4O),
              "tiktoken_qwen": (151643, QWEN)}


def rank_files(lines):
    """Ranks of a trained tokenizer, filled up with long random tokens to the number that a published file has."""
    table = alphabet()
    vocab = json.loads(byte_level(lines, [(LLAMA3, "isolated", False)]).to_str())["model"]["vocab"]
    as_bytes = {bytes(table[c] for c in token): i for token, i in vocab.items()}
    order = [bytes([b]) for b in range(256)] + sorted((t for t in as_bytes if len(t) > 1), key=as_bytes.get)
    rng = random.Random(3)
    for name, (count, pattern) in RANK_FILES.items():
        filler = [rng.randbytes(40) for _ in range(max(0, count - len(order)))]
        yield name, {t: i for i, t in enumerate(order + filler)}, pattern


def make_all(folder, corpus, wanted):
    lines = lines_of(corpus)
    take = lambda name: not wanted or name in wanted or any(name.startswith(w) for w in wanted if w.endswith("_"))
    for name, make in hugging_face(lines):
        if take(name):
            t = make()
            path = os.path.join(folder, name + ".json")
            t.save(path, pretty=False)
            yield Case(name, path, lambda x, t=t: t.encode(x, add_special_tokens=False).ids, lambda i, t=t: t.decode(i, skip_special_tokens=True))
    for name, kind, rule, fallback, more in sentence_pieces():
        if take(name):
            path = os.path.join(folder, name + ".model")
            with open(path, "wb") as f:
                f.write(train_sentencepiece(lines, kind, rule, fallback, **more))
            sp = sentencepiece.SentencePieceProcessor(model_file=path)
            yield Case(name, path, lambda x, sp=sp: encode_pieces(sp, x), sp.decode)
    if any(take(n) for n in RANK_FILES):
        for name, ranks, pattern in rank_files(lines):
            if take(name):
                path = os.path.join(folder, name + ".tiktoken")
                with open(path, "wb") as f:
                    f.writelines(base64.b64encode(token) + b" " + str(rank).encode() + b"\n" for token, rank in ranks.items())
                tk = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
                form = "NFC" if name == "tiktoken_qwen" else None
                yield Case(name, path, lambda x, tk=tk, form=form: tk.encode(unicodedata.normalize(form, x) if form else x, disallowed_special=()), tk.decode)

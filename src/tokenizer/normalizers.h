// The first stage of a tokenizer.json: what is done to a text before it is cut into pieces.
#pragma once

#include <functional>
#include <string>

#include "tokenizer/json_reader.h"

namespace switchyard {

// Valid UTF-8 to valid UTF-8.
using Normalizer = std::function<std::string(std::string)>;

// Of the "normalizer" entry: Sequence, NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, Nmt,
// BertNormalizer, Precompiled, Prepend, Replace, ByteLevel. Others are Error(usage).
Normalizer make_normalizer(const JsonReader& entry);

// A pattern entry, {"String": s} or {"Regex": r}, as a regular expression.
std::string pattern_of(const JsonReader& entry);

// SentencePiece's table of replacements, from its bytes: their number of the trie (u32), a double array, and
// the replacements, each ended by a zero. Applied to grapheme clusters of fewer than six bytes, else to
// characters, as the `tokenizers` library does. Error(usage) naming `where` when it is broken.
Normalizer make_charsmap(const std::string& bytes, const std::string& where);

}  // namespace switchyard

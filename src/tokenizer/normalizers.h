// The first stage of a tokenizer.json: normalises a text before it is cut into pieces.
#pragma once

#include <functional>
#include <string>

#include "tokenizer/json_reader.h"

namespace switchyard {

// Maps valid UTF-8 to valid UTF-8.
using Normalizer = std::function<std::string(std::string)>;

// Builds the normalizer of a "normalizer" entry: Sequence, NFC, NFD, NFKC, NFKD, Lowercase, Strip,
// StripAccents, Nmt, BertNormalizer, Precompiled, Prepend, Replace, ByteLevel. Others are Error(usage).
Normalizer make_normalizer(const JsonReader& entry);

// Converts a pattern entry, {"String": s} or {"Regex": r}, to a regular expression.
std::string pattern_of(const JsonReader& entry);

// Builds SentencePiece's replacement table from its bytes: the size of the trie in bytes (u32), a double
// array, and the replacements, each ended by a zero. Applied to grapheme clusters of fewer than six bytes,
// else to characters, as the `tokenizers` library does. Error(usage) naming `where` when the table is broken.
Normalizer make_charsmap(const std::string& bytes, const std::string& where);

}  // namespace switchyard

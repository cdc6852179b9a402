// The second stage of a tokenizer.json: a normalised text is cut into pieces, which the model sees one by
// one.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tokenizer/json_reader.h"

namespace switchyard {

struct TextPiece {
  std::string text;
  bool first;  // begins at the start of the whole text
};

struct PreTokenizer {
  std::function<std::vector<TextPiece>(std::vector<TextPiece>)> split;
  bool byte_level = false;  // the model sees bytes in GPT-2's printable alphabet
};

// Of the "pre_tokenizer" entry: Sequence, Split, ByteLevel, Metaspace, Digits, Punctuation, Whitespace,
// WhitespaceSplit, CharDelimiterSplit, BertPreTokenizer, FixedLength. Others are Error(usage). Pieces of a
// byte-level one hold the bytes themselves.
PreTokenizer make_pre_tokenizer(const JsonReader& entry);

}  // namespace switchyard

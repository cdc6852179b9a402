// The second stage of a tokenizer.json: cuts a normalised text into pieces,
// which the model encodes separately.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tokenizer/json_reader.h"

namespace switchyard {

struct TextPiece {
  std::string text;
  bool first;  // the piece begins at the start of the whole text
};

struct PreTokenizer {
  std::function<std::vector<TextPiece>(std::vector<TextPiece>)> split;
  bool byte_level = false;  // the model uses bytes in GPT-2's printable alphabet
};

// Builds the stage of a "pre_tokenizer" entry: Sequence, Split, ByteLevel, Metaspace, Digits, Punctuation,
// Whitespace, WhitespaceSplit, CharDelimiterSplit, BertPreTokenizer, FixedLength. Others are Error(usage).
// With byte_level, pieces hold the bytes themselves.
PreTokenizer make_pre_tokenizer(const JsonReader& entry);

}  // namespace switchyard

// The last stage of a tokenizer.json, from tokens back to text.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tokenizer/json_reader.h"

namespace switchyard {

// Tokens, as the vocabulary writes them, to parts of the text. Parts may be broken UTF-8 in between.
using Decoder = std::function<std::vector<std::string>(std::vector<std::string>)>;

// Of the "decoder" entry: Sequence, ByteLevel, Metaspace, WordPiece, BPEDecoder, ByteFallback, Fuse, Strip,
// Replace. Others are Error(usage).
Decoder make_decoder(const JsonReader& entry);

}  // namespace switchyard

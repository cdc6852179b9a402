// The decoder stage of a tokenizer.json, which converts tokens back to text.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tokenizer/json_reader.h"

namespace switchyard {

// Maps tokens, as written in the vocabulary, to parts of the text. Parts may be incomplete UTF-8.
using Decoder = std::function<std::vector<std::string>(std::vector<std::string>)>;

// Builds the decoder of a "decoder" entry: Sequence, ByteLevel, Metaspace, WordPiece, BPEDecoder,
// ByteFallback, Fuse, Strip, Replace. Others are Error(usage).
Decoder make_decoder(const JsonReader& entry);

}  // namespace switchyard

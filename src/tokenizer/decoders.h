// The decoder stage of a tokenizer.json, which converts tokens back to text.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tokenizer/json_reader.h"

namespace switchyard {

// Maps tokens, as written in the vocabulary, to parts of the text. Parts may be incomplete UTF-8.
using Decoder = std::function<std::vector<std::string>(std::vector<std::string>)>;

// Builds the decoder of a "decoder" entry: Sequence, ByteLevel, Metaspace, WordPiece, BPEDecoder,
// ByteFallback, Fuse, Strip, Replace. Others are Error(usage).
Decoder make_decoder(const JsonReader& entry);

// The byte of a token such as <0x0A>.
std::optional<char> byte_token(const std::string& token);

// Maps a token, as written in the vocabulary, to the exact bytes that it adds within a text.
using TokenDecoder = std::function<std::string(const std::string&)>;

// Builds it for a "decoder" entry, which `decode` was made of.
TokenDecoder make_token_decoder(const JsonReader& entry, const Decoder& decode);
// Does the same for a file without a decoder.
TokenDecoder make_token_decoder(const Decoder& decode);

}  // namespace switchyard

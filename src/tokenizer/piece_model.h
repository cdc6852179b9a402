// The third stage of a tokenizer.json: a model maps each piece of text to ids.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokenizer/json_reader.h"

namespace switchyard {

// The largest token id that is accepted.
constexpr std::int64_t kMaxTokenId = (1 << 24) - 1;

// Maps a token's text, as written in the file, to its id.
using Vocabulary = std::unordered_map<std::string, std::int32_t>;

// Immutable, usable from several threads.
class PieceModel {
 public:
  virtual ~PieceModel() = default;
  // Appends the ids of a piece of valid UTF-8 (for a byte-level model: of any bytes).
  virtual void encode(const std::string& piece, std::vector<std::int32_t>& ids) const = 0;
};

struct LoadedModel {
  std::unique_ptr<PieceModel> model;
  Vocabulary vocabulary;
};

// Builds the model of a "model" entry: BPE, Unigram, WordPiece, WordLevel (if there is no type, its members
// decide). `byte_level`: pieces are bytes, which the vocabulary writes in the byte alphabet. Error(usage) for
// other types and for broken entries.
LoadedModel make_piece_model(const JsonReader& entry, bool byte_level);

// The model types, each with its own entry.
LoadedModel make_bpe(const JsonReader& entry, bool byte_level);
LoadedModel make_unigram(const JsonReader& entry);
LoadedModel make_word_piece(const JsonReader& entry);
LoadedModel make_word_level(const JsonReader& entry);

// Reads the "vocab" object, each id once.
Vocabulary read_vocabulary(const JsonReader& entry);

// Ids of the tokens <0x00> to <0xFF>, -1 for those that the vocabulary lacks.
std::vector<std::int32_t> byte_tokens(const Vocabulary& vocabulary);

}  // namespace switchyard

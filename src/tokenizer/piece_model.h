// The third stage of a tokenizer.json: a model makes ids of each piece of text.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokenizer/json_reader.h"

namespace switchyard {

// Ids below this.
constexpr std::int64_t kMaxTokenId = (1 << 24) - 1;

// Text to id, as the file writes it.
using Vocabulary = std::unordered_map<std::string, std::int32_t>;

// Immutable, usable from several threads.
class PieceModel {
 public:
  virtual ~PieceModel() = default;
  // Appends the ids of a piece of valid UTF-8 (of a byte-level model: of any bytes).
  virtual void encode(const std::string& piece, std::vector<std::int32_t>& ids) const = 0;
};

struct LoadedModel {
  std::unique_ptr<PieceModel> model;
  Vocabulary vocabulary;
};

// Of the "model" entry: BPE, Unigram, WordPiece, WordLevel (a file without a type: by what it holds).
// `byte_level`: pieces are bytes, which the vocabulary writes in the byte alphabet. Error(usage) for others
// and for what is broken.
LoadedModel make_piece_model(const JsonReader& entry, bool byte_level);

// The kinds, each with the entry of its own.
LoadedModel make_bpe(const JsonReader& entry, bool byte_level);
LoadedModel make_unigram(const JsonReader& entry);
LoadedModel make_word_piece(const JsonReader& entry);
LoadedModel make_word_level(const JsonReader& entry);

// The "vocab" object, each id once.
Vocabulary read_vocabulary(const JsonReader& entry);

// Ids of the tokens <0x00> to <0xFF>, -1 where the vocabulary lacks one.
std::vector<std::int32_t> byte_tokens(const Vocabulary& vocabulary);

}  // namespace switchyard

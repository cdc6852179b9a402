#include "tokenizer/piece_model.h"

#include <fmt/format.h>

#include <unordered_set>

#include "core/json_file.h"

namespace switchyard {
namespace {

// Maps whole pieces to ids, and others to the unknown token.
class WordLevel : public PieceModel {
 public:
  WordLevel(Vocabulary vocabulary, std::int32_t unknown)
      : vocabulary_(std::move(vocabulary)), unknown_(unknown) {}
  void encode(const std::string& piece, std::vector<std::int32_t>& ids) const override {
    const auto found = vocabulary_.find(piece);
    ids.push_back(found == vocabulary_.end() ? unknown_ : found->second);
  }

 private:
  Vocabulary vocabulary_;
  std::int32_t unknown_;
};

// Guesses the type of a model whose file states none.
std::string guessed_type(const JsonReader& entry) {
  if (entry.has("merges")) return "BPE";
  if (entry.has("vocab") && entry.at("vocab").is_array()) return "Unigram";
  return entry.has("continuing_subword_prefix") ? "WordPiece" : "unknown";
}

}  // namespace

Vocabulary read_vocabulary(const JsonReader& entry) {
  Vocabulary vocabulary;
  std::unordered_set<std::int32_t> seen;
  entry.object("vocab");  // nothing else will do
  for (const auto& [text, value] : entry.at("vocab").items()) {
    if (!value.is_number_integer() || value < 0 || value > kMaxTokenId)
      entry.fail(
          fmt::format("the id of {} is not a whole number from 0 to {}", in_quotes(text), kMaxTokenId));
    const auto id = value.get<std::int32_t>();
    if (!seen.insert(id).second) entry.fail(fmt::format("id {} is given twice", id));
    vocabulary[text] = id;
  }
  return vocabulary;
}

std::vector<std::int32_t> byte_tokens(const Vocabulary& vocabulary) {
  std::vector<std::int32_t> ids;
  for (int byte = 0; byte < 256; ++byte) {
    const auto found = vocabulary.find(fmt::format("<0x{:02X}>", byte));
    ids.push_back(found == vocabulary.end() ? -1 : found->second);
  }
  return ids;
}

LoadedModel make_word_level(const JsonReader& entry) {
  Vocabulary vocabulary = read_vocabulary(entry);
  const std::string text = entry.text("unk_token", "<unk>");
  const auto unknown = vocabulary.find(text);
  if (unknown == vocabulary.end()) entry.fail("unk_token " + in_quotes(text) + " is not in the vocabulary");
  return {std::make_unique<WordLevel>(vocabulary, unknown->second), vocabulary};
}

LoadedModel make_piece_model(const JsonReader& entry, bool byte_level) {
  const std::string type = entry.text("type", guessed_type(entry));
  if (type == "BPE") return make_bpe(entry, byte_level);
  // Text of other models is looked up as the file writes it.
  if (byte_level)
    entry.fail("model type " + in_quotes(type) + " with a ByteLevel pre-tokenizer is not supported");
  if (type == "Unigram") return make_unigram(entry);
  if (type == "WordPiece") return make_word_piece(entry);
  if (type == "WordLevel") return make_word_level(entry);
  entry.fail("model type " + in_quotes(type) +
             " is not supported, expected BPE, Unigram, WordPiece or WordLevel");
}

}  // namespace switchyard

// Unigram: the segmentation of a piece into tokens with the highest sum of scores (Viterbi; of equal sums the
// one found first). A character that is no token may be used at ten below the lowest score; such characters
// in a row become one unknown token, or byte tokens.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "core/error.h"
#include "core/json_file.h"
#include "tokenizer/piece_model.h"
#include "tokenizer/unigram_path.h"

namespace switchyard {
namespace {

class Unigram : public PieceModel {
 public:
  Unigram(Vocabulary vocabulary, const std::vector<double>& scores, std::optional<std::int32_t> unknown,
          bool byte_fallback)
      : vocabulary_(std::move(vocabulary)), unknown_(unknown) {
    for (const auto& [text, id] : vocabulary_)
      path_.add(text, id == unknown ? -1 : id, scores[static_cast<std::size_t>(id)]);
    path_.set_unknown_score(*std::min_element(scores.begin(), scores.end()) - 10);
    if (byte_fallback) bytes_ = byte_tokens(vocabulary_);
  }

  void encode(const std::string& piece, std::vector<std::int32_t>& ids) const override {
    std::string unknown;  // characters in a row
    const auto flush = [&] {
      if (!unknown.empty()) add_part(std::exchange(unknown, {}), ids);
    };
    for (const auto& part : path_.best(piece)) {
      const std::string text = piece.substr(part.begin, part.end - part.begin);
      if (part.id < 0) {
        unknown += text;
      } else {
        flush();
        ids.push_back(part.id);
      }
    }
    flush();
  }

 private:
  void add_part(const std::string& part, std::vector<std::int32_t>& ids) const {
    if (const auto found = vocabulary_.find(part); found != vocabulary_.end()) {
      ids.push_back(found->second);
      return;
    }
    const auto byte_id = [&](char c) { return bytes_[static_cast<unsigned char>(c)]; };
    if (!bytes_.empty() && std::all_of(part.begin(), part.end(), [&](char c) { return byte_id(c) >= 0; })) {
      for (char c : part) ids.push_back(byte_id(c));
    } else if (unknown_) {
      ids.push_back(*unknown_);
    } else {
      fail_usage("[tokenizer] {} is not in the vocabulary, and the model has no unknown token",
                 in_quotes(part));
    }
  }

  Vocabulary vocabulary_;
  std::optional<std::int32_t> unknown_;
  UnigramPath<double> path_;
  std::vector<std::int32_t> bytes_;  // empty without byte fallback
};

}  // namespace

LoadedModel make_unigram(const JsonReader& entry) {
  Vocabulary vocabulary;
  std::vector<double> scores;
  const nlohmann::json& list = entry.at("vocab");
  if (!list.is_array() || list.empty() || list.size() > static_cast<std::size_t>(kMaxTokenId))
    entry.fail("\"vocab\" is not a list of tokens and scores");
  for (const nlohmann::json& token : list) {
    if (!token.is_array() || token.size() != 2 || !token[0].is_string() || !token[1].is_number())
      entry.fail(fmt::format("entry {} of \"vocab\" is not a token and its score", scores.size()));
    vocabulary[token[0].get<std::string>()] = static_cast<std::int32_t>(scores.size());
    scores.push_back(token[1].get<double>());
  }
  std::optional<std::int32_t> unknown;
  if (entry.has("unk_id"))
    unknown =
        static_cast<std::int32_t>(entry.integer("unk_id", 0, static_cast<std::int64_t>(scores.size()) - 1));
  return {std::make_unique<Unigram>(vocabulary, scores, unknown, entry.flag("byte_fallback", false)),
          vocabulary};
}

}  // namespace switchyard

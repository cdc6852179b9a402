// Unigram: the way through a piece whose tokens have the highest sum of scores (Viterbi; of equal sums the
// one found first). A character without a token of its own may be taken at ten below the lowest score; such
// characters in a row are one unknown token, or bytes.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "checkpoint/json_file.h"
#include "core/error.h"
#include "tokenizer/piece_model.h"
#include "tokenizer/unicode.h"

namespace switchyard {
namespace {

// Byte strings to values, walked byte by byte.
class Trie {
 public:
  static constexpr std::uint32_t kNone = 0;

  void add(const std::string& key, std::int32_t value) {
    std::uint32_t node = 0;
    for (char c : key) {
      auto& next = edges_[edge(node, c)];
      if (next == kNone) {
        next = static_cast<std::uint32_t>(values_.size());
        values_.push_back(-1);
      }
      node = next;
    }
    values_[node] = value;
  }
  std::uint32_t child(std::uint32_t node, char c) const {
    const auto found = edges_.find(edge(node, c));
    return found == edges_.end() ? kNone : found->second;
  }
  std::int32_t value(std::uint32_t node) const { return values_[node]; }

 private:
  static std::uint64_t edge(std::uint32_t node, char c) {
    return (std::uint64_t{node} << 8) | static_cast<unsigned char>(c);
  }
  std::unordered_map<std::uint64_t, std::uint32_t> edges_;
  std::vector<std::int32_t> values_{-1};  // of nodes; the root is 0, and nobody's child
};

class Unigram : public PieceModel {
 public:
  Unigram(Vocabulary vocabulary, std::vector<double> scores, std::optional<std::int32_t> unknown,
          bool byte_fallback)
      : vocabulary_(std::move(vocabulary)), scores_(std::move(scores)), unknown_(unknown) {
    for (const auto& [text, id] : vocabulary_) trie_.add(text, id);
    unknown_score_ = (scores_.empty() ? 0 : *std::min_element(scores_.begin(), scores_.end())) - 10;
    if (byte_fallback) bytes_ = byte_tokens(vocabulary_);
  }

  void encode(const std::string& piece, std::vector<std::int32_t>& ids) const override {
    const std::vector<Step> best = best_steps(piece);
    std::vector<std::pair<std::size_t, std::size_t>> parts;  // last one first
    bool after_unknown = false;
    for (std::size_t end = piece.size(); end > 0; end = best[end].begin) {
      const bool unknown = best[end].id < 0;
      if (unknown && after_unknown)
        parts.back().first = best[end].begin;
      else
        parts.emplace_back(best[end].begin, end);
      after_unknown = unknown;
    }
    for (auto part = parts.rbegin(); part != parts.rend(); ++part)
      add_part(piece.substr(part->first, part->second - part->first), ids);
  }

 private:
  // The best way to an end: its last token, from `begin` on; id -1 for an unknown character.
  struct Step {
    std::size_t begin = 0;
    double score = -std::numeric_limits<double>::infinity();
    std::int32_t id = -1;
  };

  std::vector<Step> best_steps(const std::string& piece) const {
    std::vector<Step> best(piece.size() + 1);
    best[0].score = 0;
    const auto offer = [&](std::size_t begin, std::size_t end, double score, std::int32_t id) {
      const double sum = best[begin].score + score;
      if (sum > best[end].score) best[end] = {begin, sum, id};
    };
    for (std::size_t begin = 0; begin < piece.size();) {
      const std::size_t length = std::max<std::size_t>(1, utf8_length(piece, begin));
      bool single = false;
      std::uint32_t node = 0;
      for (std::size_t end = begin; end < piece.size();) {
        node = trie_.child(node, piece[end++]);
        if (node == Trie::kNone) break;
        const std::int32_t id = trie_.value(node);
        if (id < 0) continue;
        offer(begin, end, scores_[static_cast<std::size_t>(id)], id == unknown_ ? -1 : id);
        single = single || end == begin + length;
      }
      if (!single) offer(begin, begin + length, unknown_score_, -1);
      begin += length;
    }
    return best;
  }

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
  std::vector<double> scores_;
  std::optional<std::int32_t> unknown_;
  Trie trie_;
  double unknown_score_;
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

// Finds the segmentation of a text into tokens with the highest sum of scores (Viterbi). Of segmentations
// with equal sums, the first one found is taken.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokenizer/unicode.h"

namespace switchyard {

// A trie that maps byte strings to values, walked byte by byte.
class ByteTrie {
 public:
  static constexpr std::uint32_t kNone = 0;

  void add(std::string_view key, std::int32_t value) {
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
  std::int32_t value(std::uint32_t node) const { return values_[node]; }  // -1: no key ends there

 private:
  static std::uint64_t edge(std::uint32_t node, char c) {
    return (std::uint64_t{node} << 8) | static_cast<unsigned char>(c);
  }
  std::unordered_map<std::uint64_t, std::uint32_t> edges_;
  std::vector<std::int32_t> values_{-1};  // by node; node 0 is the root, which is no node's child
};

// Sums of scores have type Score, whose rounding decides between nearly equal segmentations.
template <typename Score>
class UnigramPath {
 public:
  struct Part {
    std::size_t begin, end;
    std::int32_t id;  // -1: a character without a token
  };

  // `id` is -1 for a token of unknown text.
  void add(std::string_view token, std::int32_t id, Score score) {
    trie_.add(token, static_cast<std::int32_t>(tokens_.size()));
    tokens_.push_back({score, id});
  }
  // Sets the score of a character that is no token by itself.
  void set_unknown_score(Score score) { unknown_score_ = score; }

  // Returns the parts of a valid text, in order.
  std::vector<Part> best(std::string_view text) const {
    const std::vector<Step> steps = steps_of(text);
    std::vector<Part> parts;
    for (std::size_t end = text.size(); end > 0; end = steps[end].begin)
      parts.push_back({steps[end].begin, end, steps[end].id});
    std::reverse(parts.begin(), parts.end());
    return parts;
  }

 private:
  struct Token {
    Score score;
    std::int32_t id;
  };
  // The best segmentation up to a place: where its last token begins, the sum of scores, the token's id.
  struct Step {
    std::size_t begin = 0;
    Score score = -std::numeric_limits<Score>::infinity();
    std::int32_t id = -1;
  };

  std::vector<Step> steps_of(std::string_view text) const {
    std::vector<Step> steps(text.size() + 1);
    steps[0].score = 0;
    const auto offer = [&](std::size_t begin, std::size_t end, const Token& token) {
      const Score sum = steps[begin].score + token.score;
      if (sum > steps[end].score) steps[end] = {begin, sum, token.id};
    };
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t length = std::max<std::size_t>(1, utf8_length(text, begin));
      bool single = false;
      std::uint32_t node = 0;
      for (std::size_t end = begin; end < text.size();) {
        node = trie_.child(node, text[end++]);
        if (node == ByteTrie::kNone) break;
        if (trie_.value(node) < 0) continue;
        offer(begin, end, tokens_[static_cast<std::size_t>(trie_.value(node))]);
        single = single || end == begin + length;
      }
      if (!single) offer(begin, begin + length, {unknown_score_, -1});
      begin += length;
    }
    return steps;
  }

  ByteTrie trie_;
  std::vector<Token> tokens_;
  Score unknown_score_ = 0;
};

}  // namespace switchyard

// TokenHistory: the tokens of a text and how often each was generated, for penalties.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "kernels/sampling/pick_token.h"

namespace switchyard {

class TokenHistory {
 public:
  using Seen = SeenToken;

  void add_prompt(std::span<const std::int32_t> tokens) {
    for (const std::int32_t token : tokens) place_of(token);
  }
  void add_made(std::int32_t token) { ++place_of(token).made; }
  // Returns each token of the text once.
  std::span<const Seen> seen() const { return seen_; }

 private:
  Seen& place_of(std::int32_t token) {
    const auto [place, is_new] = places_.try_emplace(token, seen_.size());
    if (is_new) seen_.push_back({token, 0});
    return seen_[place->second];
  }

  std::unordered_map<std::int32_t, std::size_t> places_;  // in seen_
  std::vector<Seen> seen_;
};

}  // namespace switchyard

// Guesses a text's next tokens from the text itself: what followed the last place that had the same last
// tokens (prompt lookup, Saxena 2023). Texts that repeat (code, tables, quotes of a prompt) are guessed well.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace switchyard::texts {

class NgramDrafts {
 public:
  void add(std::span<const std::int32_t> tokens);
  // At most so many tokens; none where the text's last tokens were not there before.
  std::vector<std::int32_t> guess(std::size_t most) const;

 private:
  static constexpr std::size_t kLongest = 4, kShortest = 2;  // tokens that must agree

  std::uint64_t key_of(std::size_t end, std::size_t length) const;
  bool same(std::size_t end, std::size_t other, std::size_t length) const;

  std::vector<std::int32_t> tokens_;
  // Maps a key to the end of the last tokens that have it and a token behind them.
  std::unordered_map<std::uint64_t, std::size_t> ends_;
};

}  // namespace switchyard::texts

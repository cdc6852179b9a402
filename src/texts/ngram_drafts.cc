#include "texts/ngram_drafts.h"

#include <algorithm>

namespace switchyard::texts {

// The key of the `length` tokens before `end`.
std::uint64_t NgramDrafts::key_of(std::size_t end, std::size_t length) const {
  std::uint64_t key = length;
  for (std::size_t i = end - length; i < end; ++i) {
    key = (key + static_cast<std::uint32_t>(tokens_[i]) + 1) * 0x9e3779b97f4a7c15u;
    key ^= key >> 32;
  }
  return key;
}

// Keys may be equal by chance, of other lengths too.
bool NgramDrafts::same(std::size_t end, std::size_t other, std::size_t length) const {
  if (other < length) return false;
  const auto last = [&](std::size_t at) { return tokens_.begin() + static_cast<std::ptrdiff_t>(at); };
  return std::equal(last(end - length), last(end), last(other - length));
}

void NgramDrafts::add(std::span<const std::int32_t> tokens) {
  for (const std::int32_t token : tokens) {
    const std::size_t end = tokens_.size();  // of the tokens that `token` follows
    for (std::size_t length = kShortest; length <= std::min(kLongest, end); ++length)
      ends_[key_of(end, length)] = end;
    tokens_.push_back(token);
  }
}

std::vector<std::int32_t> NgramDrafts::guess(std::size_t most) const {
  const std::size_t end = tokens_.size();
  for (std::size_t length = std::min(kLongest, end); length >= kShortest; --length) {
    const auto found = ends_.find(key_of(end, length));
    if (found == ends_.end() || !same(end, found->second, length)) continue;
    std::vector<std::int32_t> guessed;
    // Behind the text's end its own guesses go on: what repeats at this distance repeats again.
    for (std::size_t at = found->second; guessed.size() < most; ++at)
      guessed.push_back(at < end ? tokens_[at] : guessed[at - end]);
    return guessed;
  }
  return {};
}

}  // namespace switchyard::texts

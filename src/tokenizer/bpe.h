// Byte-pair encoding of one piece of text: repeatedly joins the pair of neighbouring symbols with the lowest
// rank (the leftmost among equals) until no pair can be joined.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

namespace switchyard {

struct BpeSymbol {
  std::int32_t id;
  std::int32_t length;  // bytes of the piece it covers
};

struct BpeMerge {
  std::int32_t rank;
  std::int32_t id;  // of the joined symbol
};

// `pair(left, right, begin)` returns the merge of two neighbouring symbols, if any; they cover the piece from
// byte `begin` on.
using BpePairLookup =
    std::function<std::optional<BpeMerge>(const BpeSymbol&, const BpeSymbol&, std::int32_t begin)>;

// Appends the ids of the joined symbols. O(n log n) for n symbols.
void bpe_merge_long(const std::vector<BpeSymbol>& symbols, const BpePairLookup& pair,
                    std::vector<std::int32_t>& ids);

constexpr std::size_t kShortBpe = 32;

// Merges at most kShortBpe symbols likewise: O(n²), but allocates no memory.
template <typename Pair>
void bpe_merge_short(const std::vector<BpeSymbol>& symbols, const Pair& pair,
                     std::vector<std::int32_t>& ids) {
  constexpr BpeMerge kNone{std::numeric_limits<std::int32_t>::max(), -1};
  std::array<BpeSymbol, kShortBpe> symbol;
  std::array<std::int32_t, kShortBpe> begin;
  std::array<BpeMerge, kShortBpe> merge;  // merge of each symbol with the next one
  std::size_t count = symbols.size();
  const auto look_up = [&](std::size_t i) {
    merge[i] = i + 1 < count ? pair(symbol[i], symbol[i + 1], begin[i]).value_or(kNone) : kNone;
  };
  for (std::size_t i = 0; i < count; ++i) {
    symbol[i] = symbols[i];
    begin[i] = i == 0 ? 0 : begin[i - 1] + symbols[i - 1].length;
  }
  for (std::size_t i = 0; i < count; ++i) look_up(i);
  while (count > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < count; ++i) best = merge[i].rank < merge[best].rank ? i : best;
    if (merge[best].id < 0) break;
    symbol[best] = {merge[best].id, symbol[best].length + symbol[best + 1].length};
    --count;
    for (std::size_t i = best + 1; i < count; ++i) {
      symbol[i] = symbol[i + 1];
      begin[i] = begin[i + 1];
      merge[i] = merge[i + 1];
    }
    look_up(best);
    if (best > 0) look_up(best - 1);
  }
  for (std::size_t i = 0; i < count; ++i) ids.push_back(symbol[i].id);
}

template <typename Pair>
void bpe_merge(const std::vector<BpeSymbol>& symbols, const Pair& pair, std::vector<std::int32_t>& ids) {
  if (symbols.size() <= kShortBpe)
    bpe_merge_short(symbols, pair, ids);
  else
    bpe_merge_long(symbols, pair, ids);
}

}  // namespace switchyard

// Byte-pair encoding of one piece of text: joins neighbouring symbols, always the pair of lowest rank and
// among equals the leftmost, until no pair can be joined.
#pragma once

#include <cstdint>
#include <functional>
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

// `pair(left, right, begin)`: the merge of two neighbouring symbols that cover the piece from byte `begin`
// on, if any.
using BpePairLookup =
    std::function<std::optional<BpeMerge>(const BpeSymbol&, const BpeSymbol&, std::int32_t begin)>;

// Appends the ids of the joined symbols. n log n for n symbols.
void bpe_merge(const std::vector<BpeSymbol>& symbols, const BpePairLookup& pair,
               std::vector<std::int32_t>& ids);

}  // namespace switchyard

// Copies tokens between slots of a cache.
#pragma once

#include "ops/layer_cache.h"

namespace switchyard {

// The tokens of a slot from index `at` on.
struct SlotRange {
  const TokenVectors& vectors;
  std::int64_t slot, at;
};
// Copies `tokens` tokens to another slot, or to another index of the same slot; the two must not overlap.
void copy_tokens(Context& context, const SlotRange& from, const SlotRange& to, std::int64_t tokens);

}  // namespace switchyard

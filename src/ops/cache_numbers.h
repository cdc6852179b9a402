// Numbers of a call over attention caches, as kernels on the device read them. Internal to the caches' files.
#pragma once

#include "ops/layer_cache.h"

namespace switchyard {

// i32 [numbers] on the context's device.
Tensor uploaded(Context& context, const std::vector<std::int32_t>& numbers);

// The call's numbers where it keeps them.
Tensor numbers_of(Context& context, CallNumbers* call, std::vector<std::int32_t> numbers);

// Tokens that the slot holds; none of a padding row.
std::int64_t cached_tokens(const LayerCache& cache, std::int64_t slot);

// How many tokens of its slot each token of a call sees that attends to all before it and to itself, then the
// tokens' slots. Of each of `slots` the call has the last `tokens`, in rows of `space`; padding sees none.
std::vector<std::int32_t> attended_numbers(const LayerCache& cache, std::span<const std::int64_t> slots,
                                           std::span<const std::int64_t> tokens, std::int64_t space);
// Returns the same numbers for a call of one token a slot.
std::vector<std::int32_t> attended_numbers(const LayerCache& cache, std::span<const std::int64_t> slots);

}  // namespace switchyard

// The summation that every backend uses, so that threads and processes agree bit for bit.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace switchyard {

// out[i] = inputs[0][i] + inputs[1][i] + ..., added from left to right, in float32 for "float32" and
// "bfloat16", in float64 for "float64", in int64 for "int32", and rounded once to the element type. For
// "bfloat16 as float32" the inputs are bfloat16 and the sum stays float32. `out` overlaps no input.
void sum_in_order(std::string_view type, std::span<const void* const> inputs, void* out, std::int64_t count);

// Bytes of one input element, and of one element of the sum.
std::int64_t element_bytes(std::string_view type);
std::int64_t sum_bytes(std::string_view type);

}  // namespace switchyard

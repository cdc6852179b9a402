// Shape: the sizes of an array's dims.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/inline_vector.h"

namespace switchyard {

// The most dims that an array may have: no array of this program has more; files with more are refused.
constexpr std::size_t kMostDims = 8;
using Shape = InlineVector<std::int64_t, kMostDims>;

std::int64_t num_elements(const Shape& shape);
std::string to_string(const Shape& shape);

}  // namespace switchyard

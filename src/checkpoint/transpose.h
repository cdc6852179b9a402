// Transposes matrices of 2- and 4-byte elements.
#pragma once

#include <cstddef>
#include <cstdint>

namespace switchyard {

// to[c * stride + r] = from[r * columns + c] for all elements of `from` [rows,columns], of `element` bytes
// each (2 or 4, CHECKed). The two must not overlap.
void transpose(std::size_t element, const std::byte* from, std::int64_t rows, std::int64_t columns,
               std::byte* to, std::int64_t stride);

}  // namespace switchyard

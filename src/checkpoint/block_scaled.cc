#include "checkpoint/block_scaled.h"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/error.h"

namespace switchyard {
namespace {

// Every value of E4M3: sign, 4 bits of exponent with bias 7, 3 of mantissa; no infinity, all ones are NaN.
const std::array<float, 256>& e4m3_values() {
  static const std::array<float, 256> values = [] {
    std::array<float, 256> table{};
    for (std::uint32_t bits = 0; bits < 256; ++bits) {
      const int exponent = static_cast<int>((bits >> 3) & 15), mantissa = static_cast<int>(bits & 7);
      float value = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                  : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
      if ((bits & 127) == 127) value = std::numeric_limits<float>::quiet_NaN();
      table[bits] = (bits & 128) != 0 ? -value : value;
    }
    return table;
  }();
  return values;
}

std::int64_t blocks_of(std::int64_t elements) {
  return (elements + kScaleBlock - 1) / kScaleBlock;
}

}  // namespace

std::string block_scale_name(const std::string& weight) {
  return weight + "_scale_inv";
}

bool is_block_scaled(const SafetensorsFile::Entry& weight, const SafetensorsFile::Entry& scale) {
  return weight.dtype == "F8_E4M3" && scale.dtype == "F32" && weight.shape.size() == 2 &&
         scale.shape == Shape{blocks_of(weight.shape[0]), blocks_of(weight.shape[1])};
}

Tensor block_scaled_rows(const SafetensorsFile::Entry& weight, const SafetensorsFile::Entry& scale,
                         std::int64_t begin, std::int64_t end) {
  CHECK(is_block_scaled(weight, scale), "{} {} and {} {}", weight.dtype, to_string(weight.shape), scale.dtype,
        to_string(scale.shape));
  CHECK(0 <= begin && begin <= end && end <= weight.shape[0], "rows [{}, {}) of {}", begin, end,
        to_string(weight.shape));
  const std::array<float, 256>& values = e4m3_values();
  const std::int64_t columns = weight.shape[1], across = blocks_of(columns);
  Tensor out(DType::bf16, {end - begin, columns});
  std::vector<float> scales(static_cast<std::size_t>(across));
  for (std::int64_t r = begin; r < end && across > 0; ++r) {
    const std::byte* from = weight.bytes.data() + r * columns;
    bfloat16* to = out.data<bfloat16>() + (r - begin) * columns;
    if (r == begin || r % kScaleBlock == 0)  // entries need not be aligned
      std::memcpy(scales.data(), scale.bytes.data() + r / kScaleBlock * across * 4, scales.size() * 4);
    for (std::int64_t c0 = 0; c0 < columns; c0 += kScaleBlock) {
      const float factor = scales[static_cast<std::size_t>(c0 / kScaleBlock)];
      const std::int64_t c1 = std::min(columns, c0 + kScaleBlock);
      for (std::int64_t c = c0; c < c1; ++c)
        to[c] = bfloat16(values[std::to_integer<std::size_t>(from[c])] * factor);
    }
  }
  return out;
}

}  // namespace switchyard

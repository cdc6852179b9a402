#include "checkpoint/block_scaled.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/e4m3.h"
#include "core/error.h"
#include "core/half.h"
#include "kernels/packed/packed_block.h"

namespace switchyard {
namespace {

const std::array<float, 256>& e4m3_values() {
  static const std::array<float, 256> values = [] {
    std::array<float, 256> table{};
    for (std::size_t bits = 0; bits < 256; ++bits)
      table[bits] = e4m3_to_float(static_cast<std::uint8_t>(bits));
    return table;
  }();
  return values;
}

std::int64_t blocks_of(std::int64_t elements) {
  return (elements + kScaleBlock - 1) / kScaleBlock;
}

// Types of scales that are powers of two: 2^(e - 127), and 255 is no number.
bool is_exponent_type(const std::string& dtype) {
  return dtype == "F8_E8M0" || dtype == "U8";
}

bool is_scale_type(const std::string& dtype) {
  return dtype == "F32" || dtype == "BF16" || dtype == "F16" || is_exponent_type(dtype);
}

// Scale `i` as float32; entries need not be aligned.
float scale_at(const SafetensorsFile::Entry& scale, std::int64_t i) {
  const auto load = [&]<typename T>(T bits) {
    std::memcpy(&bits, scale.bytes.data() + i * static_cast<std::int64_t>(sizeof bits), sizeof bits);
    return bits;
  };
  if (is_exponent_type(scale.dtype)) {
    const auto exponent = load(std::uint8_t{0});
    return exponent == 255 ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0f, exponent - 127);
  }
  if (scale.dtype == "F32") return load(0.0f);
  const std::uint16_t bits = load(std::uint16_t{0});
  return scale.dtype == "F16" ? half_to_float(bits)
                              : std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

// T: of the result, whose rows begin at `out`.
template <typename T>
void scale_rows(const SafetensorsFile::Entry& weight, const SafetensorsFile::Entry& scale, std::int64_t begin,
                std::int64_t end, T* out) {
  const std::array<float, 256>& values = e4m3_values();
  const std::int64_t columns = weight.shape[1], across = blocks_of(columns);
  std::vector<float> scales(static_cast<std::size_t>(across));
  for (std::int64_t r = begin; r < end && across > 0; ++r) {
    const std::byte* from = weight.bytes.data() + r * columns;
    T* to = out + (r - begin) * columns;
    for (std::int64_t i = 0; i < across && (r == begin || r % kScaleBlock == 0); ++i)
      scales[static_cast<std::size_t>(i)] = scale_at(scale, r / kScaleBlock * across + i);
    for (std::int64_t c0 = 0; c0 < columns; c0 += kScaleBlock) {
      const float factor = scales[static_cast<std::size_t>(c0 / kScaleBlock)];
      const std::int64_t c1 = std::min(columns, c0 + kScaleBlock);
      for (std::int64_t c = c0; c < c1; ++c)
        to[c] = T(values[std::to_integer<std::size_t>(from[c])] * factor);
    }
  }
}

}  // namespace

std::string block_scale_name(const std::string& weight) {
  return weight + "_scale_inv";
}

bool is_block_scaled(const SafetensorsFile::Entry& weight, const SafetensorsFile::Entry& scale) {
  return weight.dtype == "F8_E4M3" && is_scale_type(scale.dtype) && weight.shape.size() == 2 &&
         scale.shape == Shape{blocks_of(weight.shape[0]), blocks_of(weight.shape[1])};
}

Tensor block_scaled_rows(const SafetensorsFile::Entry& weight, const SafetensorsFile::Entry& scale,
                         std::int64_t begin, std::int64_t end, DType dtype) {
  CHECK(is_block_scaled(weight, scale), "{} {} and {} {}", weight.dtype, to_string(weight.shape), scale.dtype,
        to_string(scale.shape));
  CHECK(0 <= begin && begin <= end && end <= weight.shape[0], "rows [{}, {}) of {}", begin, end,
        to_string(weight.shape));
  CHECK(is_float(dtype), "{}", name_of(dtype));
  Tensor out(dtype, {end - begin, weight.shape[1]});
  if (dtype == DType::f32)
    scale_rows(weight, scale, begin, end, out.data<float>());
  else
    scale_rows(weight, scale, begin, end, out.data<bfloat16>());
  return out;
}

Tensor block_scaled_blocks(const SafetensorsFile::Entry& weight, const SafetensorsFile::Entry& scale) {
  constexpr DType kPacked = DType::packed_fp8;
  static_assert(block_inputs(kPacked) == kScaleBlock && kScaleBlock % kBlockOutputs == 0);
  CHECK(is_block_scaled(weight, scale) && holds_packed_fp8(weight.shape), "{} {} and {} {}", weight.dtype,
        to_string(weight.shape), scale.dtype, to_string(scale.shape));
  const std::int64_t columns = weight.shape[1], across = columns / kScaleBlock;
  const Tensor blocks(kPacked, {across, weight.shape[0] / kBlockOutputs});
  std::byte* block = blocks.raw();
  for (std::int64_t i = 0; i < across; ++i) {
    for (std::int64_t row = 0; row < weight.shape[0]; row += kBlockOutputs, block += size_of(kPacked)) {
      PackedGroup group;
      group.scale = std::bit_cast<std::uint32_t>(scale_at(scale, row / kScaleBlock * across + i));
      for (std::int64_t output = 0; output < kBlockOutputs; ++output) {
        const std::byte* from = weight.bytes.data() + (row + output) * columns + i * kScaleBlock;
        for (std::int64_t g = 0; g < groups_of(kPacked); ++g, from += kGroupInputs) {
          std::memcpy(group.numbers.data(), from, group.numbers.size());
          write_group(kPacked, group, block, output, g);
        }
      }
    }
  }
  return blocks;
}

bool holds_packed_fp8(const Shape& weight) {
  return weight.size() == 2 && weight[0] % kBlockOutputs == 0 &&
         weight[1] % block_inputs(DType::packed_fp8) == 0;
}

std::optional<std::int64_t> infinite_scale(const SafetensorsFile::Entry& scale, std::int64_t begin,
                                           std::int64_t end) {
  const std::int64_t across = scale.shape[1], last = blocks_of(end) * across;
  for (std::int64_t i = begin / kScaleBlock * across; i < last; ++i) {
    if (!std::isfinite(scale_at(scale, i))) return i;
  }
  return std::nullopt;
}

bool has_nan(const SafetensorsFile::Entry& weight) {
  return std::ranges::any_of(weight.bytes,
                             [](std::byte bits) { return is_e4m3_nan(std::to_integer<std::uint8_t>(bits)); });
}

}  // namespace switchyard

// Element types; float64 is only for sums. bfloat16 is the upper half of a float32, rounded to nearest even.
//
// An element of a packed type is one block of a weight matrix: block_inputs(dtype) inputs by kBlockOutputs
// outputs, with the scales of its groups of kGroupInputs inputs. core/packed_format.h has the table of packed
// types, kernels/packed/packed_block.h the layout of their bytes. A weight [.., in, out] is an array [..,
// in/32, out/16] of blocks (in/128 for fp8 and the K-quant types), and code that moves elements (shards,
// gathers, files) moves whole blocks.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "core/packed_format.h"

namespace switchyard {

struct bfloat16 {
  std::uint16_t bits = 0;

  bfloat16() = default;
  explicit bfloat16(float value) : bits(round(value)) {}
  explicit operator float() const { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

  // Round to nearest, ties to even; a NaN stays a NaN.
  static std::uint16_t round(float value) {
    auto word = std::bit_cast<std::uint32_t>(value);
    if ((word & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((word >> 16) | 0x40u);
    word += 0x7fffu + ((word >> 16) & 1u);
    return static_cast<std::uint16_t>(word >> 16);
  }
};
static_assert(sizeof(bfloat16) == 2);

constexpr std::size_t size_of(DType dtype) {
  if (is_packed(dtype)) return static_cast<std::size_t>(packed_format(dtype).block_bytes());
  switch (dtype) {
    case DType::bf16:
      return 2;
    case DType::u8:
    case DType::i8:
      return 1;
    case DType::f64:
      return 8;
    default:
      return 4;
  }
}

constexpr std::string_view name_of(DType dtype) {
  if (is_packed(dtype)) return packed_format(dtype).name;
  switch (dtype) {
    case DType::f32:
      return "float32";
    case DType::bf16:
      return "bfloat16";
    case DType::i32:
      return "int32";
    case DType::f64:
      return "float64";
    case DType::i8:
      return "int8";
    default:
      return "uint8";
  }
}

// "float32" or "bfloat16" (also "f32", "bf16"); throws Error(usage) for anything else, naming `key`.
DType parse_float_dtype(std::string_view text, std::string_view key);

// The packed type that `name` names, if weights can be packed into it; none for any other word.
std::optional<DType> packed_dtype(std::string_view name);

// Bits per value, including its share of the scales: 4.5 for int4.
constexpr double bits_of(DType dtype) {
  const auto bits = 8.0 * static_cast<double>(size_of(dtype));
  return is_packed(dtype) ? bits / static_cast<double>(block_values(dtype)) : bits;
}

constexpr bool is_float(DType dtype) {
  return dtype == DType::f32 || dtype == DType::bf16;
}

template <typename T>
struct dtype_of;
template <>
struct dtype_of<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct dtype_of<bfloat16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct dtype_of<std::int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct dtype_of<std::uint8_t> {
  static constexpr DType value = DType::u8;
};
template <>
struct dtype_of<std::int8_t> {
  static constexpr DType value = DType::i8;
};
template <>
struct dtype_of<double> {
  static constexpr DType value = DType::f64;
};

}  // namespace switchyard

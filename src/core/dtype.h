// Element types; float64 is for sums alone. bfloat16 is the upper half of a float32, rounded to nearest even.
//
// A packed type's element is a block of a weight matrix, block_inputs(dtype) inputs by kBlockOutputs outputs,
// with the scales of its groups of kGroupInputs inputs (kernels/packed_block.h). So a weight [.., in, out] is
// an array
// [.., in/32, out/16] of blocks (in/128 of fp8 and the types of K-quants), and what moves elements (shards,
// gathers, files) moves whole blocks.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace switchyard {

enum class DType : std::uint8_t {
  f32,
  bf16,
  i32,
  u8,
  f64,
  i8,
  packed_int8,
  packed_int4,
  packed_int4a,
  packed_mxfp4,
  packed_int5a,
  packed_q4_k,
  packed_q5_k,
  packed_q6_k,
  packed_fp8,
};

constexpr std::int64_t kGroupInputs = 32, kBlockOutputs = 16;

constexpr bool is_packed(DType dtype) {
  return dtype >= DType::packed_int8;
}

// Inputs of a packed type's block.
constexpr std::int64_t block_inputs(DType packed) {
  return packed >= DType::packed_q4_k ? 4 * kGroupInputs : kGroupInputs;
}

constexpr std::int64_t block_values(DType packed) {
  return block_inputs(packed) * kBlockOutputs;
}

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
  switch (dtype) {
    case DType::bf16:
      return 2;
    case DType::u8:
    case DType::i8:
      return 1;
    case DType::f64:
      return 8;
    case DType::packed_int8:
      return 544;
    case DType::packed_int4:
      return 288;
    case DType::packed_int4a:
      return 320;
    case DType::packed_mxfp4:
      return 272;
    case DType::packed_int5a:
      return 384;
    case DType::packed_q4_k:
      return 1216;
    case DType::packed_q5_k:
      return 1472;
    case DType::packed_q6_k:
      return 1696;
    case DType::packed_fp8:
      return 2112;
    default:
      return 4;
  }
}

constexpr std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "float32";
    case DType::bf16:
      return "bfloat16";
    case DType::i32:
      return "int32";
    case DType::f64:
      return "float64";
    case DType::packed_int8:
      return "int8";
    case DType::packed_int4:
      return "int4";
    case DType::packed_int4a:
      return "int4a";
    case DType::packed_mxfp4:
      return "mxfp4";
    case DType::packed_int5a:
      return "int5a";
    case DType::packed_q4_k:
      return "q4_k";
    case DType::packed_q5_k:
      return "q5_k";
    case DType::packed_q6_k:
      return "q6_k";
    case DType::packed_fp8:
      return "fp8";
    case DType::i8:
      return "int8";
    default:
      return "uint8";
  }
}

// "float32" or "bfloat16" (also "f32", "bf16"); throws Error(usage) for anything else, naming `key`.
DType parse_float_dtype(std::string_view text, std::string_view key);

// "int8", "int4", "int4a" or "mxfp4" as the packed type, which weights can be packed into; none for another
// word: the other types are made from files that have their blocks.
std::optional<DType> packed_dtype(std::string_view name);

// Bits that a value takes with its share of the scales: 4.5 of int4.
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

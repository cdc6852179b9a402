// PackedFormat: a table of the formats of packed weights, one row a format. Sizes, names, the words of
// configurations, the unpackers' loops and the kernels' dispatch follow from the table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

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

enum class PackedScale : std::uint8_t { half, exponent, f32 };  // float16; a power of 2 in a byte; float32

// One format. A group of 32 inputs of one output has a scale and numbers of `bits` bits: the low four bits
// are stored in half bytes, the higher bits in words of their own (8 bits: in whole bytes).
struct PackedFormat {
  DType dtype;
  std::string_view name;  // the word of `weight_format`, where weights can be packed into it
  int bits;
  std::int64_t groups;  // per block, one after the other along the inputs
  PackedScale scale;    // one per output and block
  bool offset;          // true when an offset of the same type accompanies the scale
  // K-quants: a group scales the block's scale and offset by integers: the number for the scale; 0: none.
  std::int64_t factors;
  int least_number, numbers;  // the range of a group's numbers: least, and how many
  bool packable;  // true when weights can be packed into it; the others are read from files

  constexpr bool in_bytes() const { return bits == 8; }
  constexpr int high_bits() const { return in_bytes() ? 0 : bits - 4; }
  constexpr std::int64_t scale_bytes() const {
    const std::int64_t one = scale == PackedScale::half ? 2 : scale == PackedScale::exponent ? 1 : 4;
    return one * kBlockOutputs * (offset ? 2 : 1);
  }
  constexpr std::int64_t header_bytes() const {
    const std::int64_t of_group = factors == 0 ? 0 : factors + (offset ? 1 : 0);
    return scale_bytes() + groups * of_group * kBlockOutputs;
  }
  constexpr std::int64_t group_bytes() const { return kGroupInputs * kBlockOutputs * bits / 8; }
  constexpr std::int64_t block_bytes() const { return header_bytes() + groups * group_bytes(); }
};

// clang-format off
constexpr PackedFormat kPackedFormats[] = {
    // dtype               name     bits groups scale                 offset factors least count packable
    {DType::packed_int8,  "int8",   8,   1,     PackedScale::half,     false, 0,      -128, 256,  true},
    {DType::packed_int4,  "int4",   4,   1,     PackedScale::half,     false, 0,      -8,   16,   true},
    {DType::packed_int4a, "int4a",  4,   1,     PackedScale::half,     true,  0,      0,    16,   true},
    {DType::packed_mxfp4, "mxfp4",  4,   1,     PackedScale::exponent, false, 0,      0,    16,   true},
    {DType::packed_int5a, "int5a",  5,   1,     PackedScale::half,     true,  0,      0,    32,   false},
    {DType::packed_q4_k,  "q4_k",   4,   4,     PackedScale::half,     true,  1,      0,    16,   false},
    {DType::packed_q5_k,  "q5_k",   5,   4,     PackedScale::half,     true,  1,      0,    32,   false},
    {DType::packed_q6_k,  "q6_k",   6,   4,     PackedScale::half,     false, 2,      -32,  64,   false},
    // fp8's numbers are e4m3 bit patterns. The 32 from 0x30 on are multiples of 1/16 from 1/2 to 7.5.
    {DType::packed_fp8,   "fp8",    8,   4,     PackedScale::f32,      false, 0,      0x30, 32,   false},
};
// clang-format on
constexpr std::size_t kPackedFormatCount = std::size(kPackedFormats);

constexpr bool is_packed(DType dtype) {
  return dtype >= DType::packed_int8;
}

// The table row of a packed type.
constexpr const PackedFormat& packed_format(DType packed) {
  return kPackedFormats[static_cast<std::size_t>(packed) - static_cast<std::size_t>(DType::packed_int8)];
}
constexpr bool rows_follow_the_enumeration() {
  for (const PackedFormat& format : kPackedFormats) {
    if (packed_format(format.dtype).dtype != format.dtype) return false;
  }
  return true;
}
static_assert(rows_follow_the_enumeration());

// The number of inputs in a block of a packed type.
constexpr std::int64_t block_inputs(DType packed) {
  return packed_format(packed).groups * kGroupInputs;
}

constexpr std::int64_t block_values(DType packed) {
  return block_inputs(packed) * kBlockOutputs;
}

// All packed types, or only those that weights can be packed into.
inline std::vector<DType> packed_types(bool packable_only = false) {
  std::vector<DType> types;
  for (const PackedFormat& format : kPackedFormats) {
    if (format.packable || !packable_only) types.push_back(format.dtype);
  }
  return types;
}

// Calls body(std::integral_constant<DType, packed>()) with the packed type as a compile-time constant.
template <typename Body>
constexpr void with_packed_type(DType packed, const Body& body) {
  [&]<std::size_t... i>(std::index_sequence<i...>) {
    (void)((packed == kPackedFormats[i].dtype &&
            (body(std::integral_constant<DType, kPackedFormats[i].dtype>()), true)) ||
           ...);
  }
  (std::make_index_sequence<kPackedFormatCount>());
}

}  // namespace switchyard

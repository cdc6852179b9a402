// The blocks of packed weights: one group of 32 inputs, or four, by 16 outputs, as kernels read them.
//
// A group of an output has a scale s, in some types an offset m too, and 32 numbers q:
//
//   type    value                    header of the block                                bits a value
//   int8    s·q,  -128 <= q <= 127   16 scales, float16                                 8.5
//   int4    s·q,  -8 <= q <= 7       16 scales, float16                                 4.5
//   int4a   s·q + m,  0 <= q <= 15   16 scales, then 16 offsets, float16                5
//   int5a   s·q + m,  0 <= q <= 31   as int4a                                           6
//   mxfp4   s·e2m1(q)                16 exponents e, uint8: s = 2^(e - 127)             4.25
//   fp8     s·e4m3(q)                16 scales, float32                                 8.25
//   q4_k    (d·a)·q - e·b,  q <= 15  16 d and 16 e, float16; 16 a of each group, then   4.75
//   q5_k    the same,  q <= 31       16 b of each group, uint8                          5.75
//   q6_k    (d·a)·q, -32 <= q <= 31  16 d, float16; 16 a of each half group, int8       6.625
//
// fp8 and the last three have four groups in a block, whose s, d and e are the same.
//
// After the header come the groups, in words of four bytes, 16 of them (one of each output) at a time: a
// register's lanes are outputs, so that no sum goes across lanes.
//   int8, fp8  word u holds the inputs 4u .. 4u + 3, lowest byte first
//   others     word u of four holds the lower four bits of the inputs 8u .. 8u + 7: byte i has input 8u + i
//              below and 8u + 4 + i above, int4's in two's complement. Then comes, of 5 bits, a word of the
//              fifth ones; of 6 bits, two words of the two upper ones, of 16 inputs each; from below in the
//              order of those halves. q6_k's numbers are stored as q + 32.
// All products are rounded to float32, and so is the sum, as GGUF's formats define their values.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "core/dtype.h"

namespace switchyard {

constexpr std::int64_t kWordBytes = 4 * kBlockOutputs;  // a word of every output

// The eight magnitudes of e2m1 (OCP Microscaling Formats 1.0), by their lower three bits; bit 3 is the sign.
constexpr std::array<float, 8> kFp4 = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
// Returns the value of the four bits without a table.
constexpr float fp4_to_float(std::uint32_t bits) {
  const std::uint32_t exponent = bits >> 1 & 3u, mantissa = bits & 1u;
  const float magnitude = exponent == 0 ? 0.5f * static_cast<float>(mantissa)
                                        : std::bit_cast<float>((exponent + 126u) << 23 | mantissa << 22);
  return (bits & 8u) != 0 ? -magnitude : magnitude;
}
// 2^(exponent - 127); 2^-127 is no normal number.
constexpr float mxfp4_scale(std::uint32_t exponent) {
  return std::bit_cast<float>(exponent == 0 ? 0x00400000u : exponent << 23);
}

constexpr std::int64_t groups_of(DType packed) {  // of a block
  return packed_format(packed).groups;
}
constexpr bool is_k_quant(DType packed) {
  return packed_format(packed).factors > 0;
}
constexpr bool has_offset(DType packed) {
  return packed_format(packed).offset;
}
constexpr bool has_bytes(DType packed) {  // else halves of bytes
  return packed_format(packed).in_bytes();
}
// Bits of a number beside the lower four.
constexpr int high_bits(DType packed) {
  return packed_format(packed).high_bits();
}
// Scales of a group.
constexpr std::int64_t scales_of(DType packed) {
  return is_k_quant(packed) ? packed_format(packed).factors : 1;
}
constexpr std::int64_t header_bytes(DType packed) {
  return packed_format(packed).header_bytes();
}
constexpr std::int64_t group_bytes(DType packed) {
  return packed_format(packed).group_bytes();
}
// Returns where a K-quant's bytes of a group begin, after the float16 numbers: `a` of each half of
// the group that has its own, and `b`.
constexpr std::int64_t scale_factors_at(DType packed, std::int64_t group) {
  return packed_format(packed).scale_bytes() + group * scales_of(packed) * kBlockOutputs;
}
constexpr std::int64_t offset_factors_at(DType packed, std::int64_t group) {
  return scale_factors_at(packed, groups_of(packed)) + group * kBlockOutputs;
}
// A group of one output, unpacked: its numbers q (of mxfp4 the bits of e2m1), and its scale and offset (s and
// m, d and e) as bits of float16, of fp8 of float32, of mxfp4 the exponent; a of each half of a K-quant's
// group (twice the same for one scale), and b.
struct PackedGroup {
  std::array<std::int8_t, kGroupInputs> numbers = {};
  std::uint32_t scale = 0;
  std::uint16_t offset = 0;
  std::array<std::int16_t, 2> scale_factors = {};
  std::uint8_t offset_factor = 0;
};
// Reads or writes group `group` of the block.
PackedGroup read_group(DType packed, const std::byte* block, std::int64_t output, std::int64_t group = 0);
void write_group(DType packed, const PackedGroup& values, std::byte* block, std::int64_t output,
                 std::int64_t group = 0);
// The 32 values of a group, as the table above defines them.
std::array<float, kGroupInputs> values_of(DType packed, const PackedGroup& group);

// The group nearest to 32 finite float32 values, of a type that packed_dtype() names (CHECKed):
//   int8   the scale is the largest magnitude over 127
//   int4   of 17 scales around the one that gives the largest value the number -8, the one with the smallest
//          sum of squared errors when it is fitted to its numbers
//   int4a  the scale and offset of the smallest and the largest value
//   mxfp4  the exponent of the largest magnitude, less e2m1's own (OCP Microscaling Formats 1.0, 6.3)
// Scales are rounded to their type first, and numbers to nearest, ties to even, for the rounded scale.
PackedGroup nearest_group(DType packed, const std::array<float, kGroupInputs>& values);

}  // namespace switchyard

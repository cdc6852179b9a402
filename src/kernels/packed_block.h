// The blocks of packed weights: 32 inputs (a group) by 16 outputs, as kernels read them.
//
// A group of an output has a scale s, in int4a an offset m too, and 32 numbers q:
//
//   type    value                 header of the block                           bits a value
//   int8    s·q,  -127 <= q <= 127  16 scales, float16                           8.5
//   int4    s·q,  -8 <= q <= 7      16 scales, float16                           4.5
//   int4a   s·q + m,  0 <= q <= 15  16 scales, then 16 offsets, float16          5
//   mxfp4   s·e2m1(q)               16 exponents e, uint8: s = 2^(e - 127)       4.25
//
// After the header come words of four bytes, 16 of them (one of each output) at a time: a register's lanes
// are outputs, so that no sum goes across lanes.
//   int8    word u holds the inputs 4u .. 4u + 3, lowest byte first
//   4 bits  word u holds the inputs 8u .. 8u + 7: byte i has input 8u + i in its lower half and 8u + 4 + i in
//   its
//           upper half. int4's halves are two's complement.
// The products are rounded to float32 before the offset is added, as GGUF's formats define their values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/dtype.h"

namespace switchyard {

constexpr std::int64_t kWordBytes = 4 * kBlockOutputs;  // a word of every output

// The eight magnitudes of e2m1 (OCP Microscaling Formats 1.0), by their lower three bits; bit 3 is the sign.
constexpr std::array<float, 8> kFp4 = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};

constexpr std::int64_t header_bytes(DType packed) {
  switch (packed) {
    case DType::packed_int4a:
      return 4 * kBlockOutputs;
    case DType::packed_mxfp4:
      return kBlockOutputs;
    default:
      return 2 * kBlockOutputs;
  }
}
constexpr bool has_bytes(DType packed) {  // else halves of bytes
  return packed == DType::packed_int8;
}
static_assert(size_of(DType::packed_int8) == header_bytes(DType::packed_int8) + kBlockInputs * kBlockOutputs);
static_assert(size_of(DType::packed_int4) ==
              header_bytes(DType::packed_int4) + kBlockInputs * kBlockOutputs / 2);

// A group of one output, unpacked: its numbers as they are stored (int8 and int4 signed, else 0 .. 15), and
// its scale and offset as bits of float16, or for mxfp4 the exponent.
struct PackedGroup {
  std::array<std::int8_t, kBlockInputs> numbers = {};
  std::uint16_t scale = 0, offset = 0;
};
PackedGroup read_group(DType packed, const std::byte* block, std::int64_t output);
void write_group(DType packed, const PackedGroup& group, std::byte* block, std::int64_t output);
// The 32 values of a group, as the table above defines them.
std::array<float, kBlockInputs> values_of(DType packed, const PackedGroup& group);

// The group nearest to 32 finite float32 values:
//   int8   the scale is the largest magnitude over 127
//   int4   of 17 scales around the one that gives the largest value the number -8, the one with the smallest
//   sum
//          of squared errors when it is fitted to its numbers
//   int4a  the scale and offset of the smallest and the largest value
//   mxfp4  the exponent of the largest magnitude, less e2m1's own (OCP Microscaling Formats 1.0, 6.3)
// Scales are rounded to their type first, and numbers to nearest, ties to even, for the rounded scale.
PackedGroup nearest_group(DType packed, const std::array<float, kBlockInputs>& values);

}  // namespace switchyard

// Packed weights as left operands of tensor cores (tiles.h: multiply_tiles), made in registers.
//
// A warp has a group of 32 inputs of 32 outputs, two blocks of 16. Lane t has four neighbouring outputs, from
// 4·(t / 4) on, and of each the eight inputs from 8·(t mod 4) on: what of a stored word of four bits is one
// word, so 16 bytes hold those of four outputs. Sums do not depend on the order of inputs, if both operands
// have the same: the pairs of a lane's eight inputs are (0, 2), (1, 3), (4, 6) and (5, 7), as masks leave
// them. Two left operands of 16 outputs have the lane's outputs 0 and 1, then 2 and 3, in their rows t / 4
// and eight more, so a lane's sums are of its own outputs.
#pragma once

#include "kernels/cuda/pairs.h"
#include "kernels/packed/cuda/packed_groups.h"

namespace switchyard::gpu {

// Returns whether numbers of the type, before they are scaled, are exact in bfloat16, which has eight bits:
// integers up to 256, and fp8 and mxfp4, of four bits and two.
constexpr bool exact_in_bfloat16(DType packed) {
  const PackedFormat& format = packed_format(packed);
  return packed == DType::packed_fp8 || packed == DType::packed_mxfp4 ||
         (format.least_number >= -256 && format.least_number + format.numbers - 1 <= 256);
}

// The lane's four outputs are multiplied by scales, one for each half of the group; then offsets are added.
struct LaneScales {
  float scales[2][4], offsets[4];
};

// A lane's part of a group, in shared memory. Lanes stand beside each other, in pieces of 16 bytes or less.
template <DType packed>
class LaneShare {
 public:
  static_assert(exact_in_bfloat16(packed));
  static constexpr int kHigh = high_bits(packed), kScales = static_cast<int>(scales_of(packed));
  static constexpr bool kOffsets = has_offset(packed), kFactors = is_k_quant(packed);

 private:
  static constexpr int kScaleBytes = 4 * static_cast<int>(packed_format(packed).scale_bytes()) /
                                     static_cast<int>(kBlockOutputs) / (kOffsets ? 2 : 1);
  // Places of the pieces, in bytes of a lane, the largest first.
  static constexpr int kHighAt = has_bytes(packed) ? 32 : 16, kScalesAt = kHighAt + (kHigh > 0 ? 16 : 0),
                       kOffsetsAt = kScalesAt + kScaleBytes, kFactorsAt = kOffsetsAt + (kOffsets ? 8 : 0),
                       kOffsetFactorsAt = kFactorsAt + (kFactors ? 4 * kScales : 0);

 public:
  static constexpr int kBytes = kOffsetFactorsAt + (kFactors && kOffsets ? 4 : 0);

  // stage: kBytes · 32 of shared memory.
  GPU_FUNCTION explicit LaneShare(unsigned char* stage) : stage_(stage) {}

  // Starts to copy the share of group `group` of the block, outputs from `output` on.
  GPU_FUNCTION void copy(const std::byte* block, int output, std::int64_t group) const {
    const int quad = thread_index() % 4;
    const std::byte* const numbers = block + header_bytes(packed) + group * group_bytes(packed) + 4 * output;
    if constexpr (has_bytes(packed)) {
      copy_bytes_async<16>(piece<16>(0), numbers + 2 * quad * kWordBytes);
      copy_bytes_async<16>(piece<16>(16), numbers + (2 * quad + 1) * kWordBytes);
    } else {
      copy_bytes_async<16>(piece<16>(0), numbers + quad * kWordBytes);
    }
    if constexpr (kHigh > 0)
      copy_bytes_async<16>(piece<16>(kHighAt), numbers + (4 + quad * kHigh / 4) * kWordBytes);
    copy_bytes_async<kScaleBytes>(piece<kScaleBytes>(kScalesAt), block + output * (kScaleBytes / 4));
    if constexpr (kOffsets) copy_bytes_async<8>(piece<8>(kOffsetsAt), block + 2 * (kBlockOutputs + output));
    if constexpr (kFactors) {
      GPU_UNROLL
      for (int half = 0; half < kScales; ++half)
        copy_bytes_async<4>(piece<4>(kFactorsAt + 4 * half),
                            scale_factors<packed>(block, group) + half * kBlockOutputs + output);
      if constexpr (kOffsets)
        copy_bytes_async<4>(piece<4>(kOffsetFactorsAt), offset_factors<packed>(block, group) + output);
    }
  }

  // Left operands of the group's inputs: a[i][step] of the lane's outputs 2i and 2i + 1, and its pairs 2·step
  // and the next.
  GPU_FUNCTION void read(std::uint32_t (&a)[2][2][4]) const {
    std::uint32_t words[has_bytes(packed) ? 2 : 1][4], high[4] = {};
    read_words<16>(0, words[0]);
    if constexpr (has_bytes(packed)) read_words<16>(16, words[1]);
    if constexpr (kHigh > 0) read_words<16>(kHighAt, high);
    GPU_UNROLL
    for (int output = 0; output < 4; ++output) {
      std::uint32_t of_output[has_bytes(packed) ? 2 : 1], upper = 0;
      of_output[0] = words[0][output];
      if constexpr (has_bytes(packed)) of_output[1] = words[1][output];
      if constexpr (kHigh > 0) upper = spread(high[output]);
      GPU_UNROLL
      for (int i = 0; i < 4; ++i) a[output / 2][i / 2][output % 2 + i % 2 * 2] = pair(of_output, upper, i);
    }
  }

  GPU_FUNCTION LaneScales scales() const {
    LaneScales result = {};
    std::uint32_t words[kScaleBytes / 4], factors[kScales];
    read_words<kScaleBytes>(kScalesAt, words);
    if constexpr (kFactors) {
      GPU_UNROLL
      for (int half = 0; half < kScales; ++half) factors[half] = read_word(kFactorsAt + 4 * half);
    }
    GPU_UNROLL
    for (int i = 0; i < 4; ++i) {
      float scale;
      if constexpr (packed == DType::packed_mxfp4)
        scale = mxfp4_scale(words[0] >> 8 * i & 255u);
      else if constexpr (packed == DType::packed_fp8)
        scale = float_of_bits(words[i]);
      else
        scale = float_of_half(words[i / 2] >> 16 * (i % 2) & 0xffffu);
      GPU_UNROLL
      for (int half = 0; half < 2; ++half) {
        result.scales[half][i] = scale;
        if constexpr (kFactors) {
          const std::uint32_t factor = factors[kScales == 2 ? half : 0] >> 8 * i & 255u;
          result.scales[half][i] *= packed == DType::packed_q6_k
                                        ? static_cast<float>(static_cast<std::int8_t>(factor))
                                        : static_cast<float>(factor);
        }
      }
    }
    if constexpr (kOffsets) {
      std::uint32_t offsets[2];
      read_words<8>(kOffsetsAt, offsets);
      GPU_UNROLL
      for (int i = 0; i < 4; ++i) {
        result.offsets[i] = float_of_half(offsets[i / 2] >> 16 * (i % 2) & 0xffffu);
        if constexpr (kFactors)
          result.offsets[i] *= -static_cast<float>(read_word(kOffsetFactorsAt) >> 8 * i & 255u);
      }
    }
    return result;
  }

 private:
  template <int bytes>
  GPU_FUNCTION unsigned char* piece(int at) const {
    return stage_ + at * kWarp + thread_index() % kWarp * bytes;
  }
  template <int bytes>
  GPU_FUNCTION void read_words(int at, std::uint32_t* words) const {
    const auto from = *reinterpret_cast<const Vector<std::uint32_t, bytes / 4>*>(piece<bytes>(at));
    GPU_UNROLL
    for (int i = 0; i < bytes / 4; ++i) words[i] = from.at[i];
  }
  GPU_FUNCTION std::uint32_t read_word(int at) const {
    return *reinterpret_cast<const std::uint32_t*>(piece<4>(at));
  }

  // The upper bits of the eight numbers, so that those of number j stand at 4 + kHigh · j, and those of
  // number j + 4 at 16 more (j < 4).
  GPU_FUNCTION static std::uint32_t spread(std::uint32_t word) {
    const std::uint32_t own = word >> (thread_index() % 4 * 8 * kHigh % 32) & ((1u << 8 * kHigh) - 1u);
    return (own | own << (16 - 4 * kHigh)) << 4;
  }

  // Pair i of the lane's inputs, of one output.
  template <int count>
  GPU_FUNCTION static std::uint32_t pair(const std::uint32_t (&words)[count], std::uint32_t upper, int i) {
    constexpr std::uint32_t kOne = twice(0x3f80), kOf128 = twice(0x4300);  // 1, and 128 with seven bits after
    if constexpr (packed == DType::packed_int8) {
      // 128 and the lower bits, less 256 where the number is negative, else 128.
      const std::uint32_t word = words[i / 2] >> i % 2 * 8;
      return multiply_add_pairs((word & twice(0x7f)) | kOf128, kOne, (word & twice(0x80)) | twice(0xc300));
    } else if constexpr (packed == DType::packed_fp8) {
      const std::uint32_t word = words[i / 2] >> i % 2 * 8;
      const std::uint32_t none = ((word & twice(0x7f)) + twice(1)) & twice(0x80);
      // Bits in the places of a bfloat16 are the number over 2^120, also where it is denormal.
      return multiply_add_pairs((word << 8 & twice(0x8000)) | (word << 4 & twice(0x07f0)), twice(0x7b80),
                                twice(0x8000)) |
             ((none << 8) - (none >> 7));
    } else {
      const int number = i / 2 + i % 2 * 2;
      const std::uint32_t word = words[0] >> 4 * number;
      if constexpr (packed == DType::packed_mxfp4) {
        return multiply_add_pairs((word << 12 & twice(0x8000)) | (word << 6 & twice(0x01c0)), twice(0x7e80),
                                  twice(0x8000));
      } else {
        // The number with its sign turned over is 8 more; 128 has the number as its last bits.
        constexpr std::uint32_t kSign = packed == DType::packed_int4 ? 8 : 0,
                                kZero = packed == DType::packed_q6_k ? 32 : kSign;
        std::uint32_t bits = (word & twice(15)) ^ (kOf128 | twice(kSign));
        if constexpr (kHigh > 0) bits |= upper >> kHigh * number & twice(((1u << kHigh) - 1u) << 4);
        return multiply_add_pairs(bits, kOne, twice(0xc300 + kZero));
      }
    }
  }

  unsigned char* stage_;
};

}  // namespace switchyard::gpu

// Groups of packed weights as a GPU's threads read them (kernels/packed/packed_block.h): a thread has a group
// of 32 inputs of one output, and its neighbours those of neighbouring outputs.
#pragma once

#include "core/half.h"
#include "kernels/cuda/portable.h"
#include "kernels/packed/packed_block.h"

namespace switchyard::gpu {

GPU_FUNCTION std::uint32_t word_at(const std::byte* at) {
  return *reinterpret_cast<const std::uint32_t*>(at);
}
GPU_FUNCTION float half_at(const std::byte* block, std::int64_t i) {
  return half_to_float(*reinterpret_cast<const std::uint16_t*>(block + 2 * i));
}
GPU_FUNCTION int byte_at(const std::byte* at) {
  return *reinterpret_cast<const std::uint8_t*>(at);
}

// The bytes of a K-quant's group of 16 outputs: of its scales, one for each half where a half has its own,
// and of its offset. Places are constants here: what a GPU runs cannot read the host's table of formats.
template <DType packed>
GPU_FUNCTION const std::byte* scale_factors(const std::byte* block, std::int64_t group) {
  constexpr std::int64_t kFirst = scale_factors_at(packed, 0), kEach = scale_factors_at(packed, 1) - kFirst;
  return block + kFirst + group * kEach;
}
template <DType packed>
GPU_FUNCTION const std::byte* offset_factors(const std::byte* block, std::int64_t group) {
  constexpr std::int64_t kFirst = offset_factors_at(packed, 0), kEach = offset_factors_at(packed, 1) - kFirst;
  return block + kFirst + group * kEach;
}

// The factors of an output's numbers in each half of a group, and the offset added after them.
struct GroupScales {
  float scales[2];
  float offset;
};
template <DType packed>
GPU_FUNCTION GroupScales scales_at(const std::byte* block, int output, std::int64_t group) {
  if constexpr (packed == DType::packed_mxfp4) {
    const float scale = mxfp4_scale(static_cast<std::uint32_t>(byte_at(block + output)));
    return {{scale, scale}, 0};
  } else if constexpr (packed == DType::packed_fp8) {
    const float scale = float_of_bits(word_at(block + 4 * output));
    return {{scale, scale}, 0};
  } else {
    const float both = half_at(block, output);
    GroupScales result{{both, both}, 0};
    if constexpr (has_offset(packed)) result.offset = half_at(block, kBlockOutputs + output);
    if constexpr (is_k_quant(packed)) {
      const std::byte* const factors = scale_factors<packed>(block, group) + output;
      for (int half = 0; half < 2; ++half) {
        const int factor = byte_at(factors + (scales_of(packed) == 2 ? half * kBlockOutputs : 0));
        result.scales[half] *= static_cast<float>(
            packed == DType::packed_q6_k ? static_cast<std::int8_t>(static_cast<std::uint8_t>(factor))
                                         : factor);
      }
      if constexpr (has_offset(packed))
        result.offset =
            -(result.offset * static_cast<float>(byte_at(offset_factors<packed>(block, group) + output)));
    }
    return result;
  }
}

// The numbers of a group, in words as they are stored.
template <DType packed>
struct GroupNumbers {
  static constexpr int kWords = static_cast<int>(group_bytes(packed) / kWordBytes);
  std::uint32_t words[kWords];

  GPU_FUNCTION void load(const std::byte* block, int output, std::int64_t group) {
    const std::byte* const from = block + header_bytes(packed) + group * group_bytes(packed) + 4 * output;
    GPU_UNROLL
    for (int u = 0; u < kWords; ++u) words[u] = word_at(from + u * kWordBytes);
  }
  // The bits of the number of an input, which is a constant where loops are unrolled.
  GPU_FUNCTION std::uint32_t bits(int input) const {
    if constexpr (has_bytes(packed)) return words[input / 4] >> 8 * (input % 4) & 255u;
    constexpr int kHigh = high_bits(packed);
    const int u = input / 8, of_word = input % 8, j = of_word < 4 ? 2 * of_word : 2 * of_word - 7;
    std::uint32_t high = 0;
    if constexpr (kHigh > 0)
      high = words[4 + u * kHigh / 4] >> (u * 8 * kHigh % 32 + j * kHigh) & ((1u << kHigh) - 1u);
    return (words[u] >> 4 * j & 15u) | high << 4;
  }
  // Returns the number of an input before its scale.
  GPU_FUNCTION float number(int input) const {
    const std::uint32_t number = bits(input);
    if constexpr (packed == DType::packed_mxfp4) {
      return small_float<4, 1>(number);
    } else if constexpr (packed == DType::packed_fp8) {
      return (number & 127u) == 127u ? NAN : small_float<8, 3>(number);
    } else {
      // A conversion takes four times as long as the two operations here: 2^23 has the
      // number as its last bits.
      constexpr std::uint32_t kSign = packed == DType::packed_int8   ? 128u
                                      : packed == DType::packed_int4 ? 8u
                                                                     : 0u;
      constexpr std::uint32_t kZero = packed == DType::packed_q6_k ? 32u : kSign;
      return float_of_bits(number ^ (0x4b000000u | kSign)) - static_cast<float>(0x800000u + kZero);
    }
  }

 private:
  // A number of `width` bits, of which the upper one is the sign and the last ones the mantissa. Its bits in
  // the places of a float are the number times a power of two, also where it is denormal.
  template <int width, int mantissa>
  GPU_FUNCTION static float small_float(std::uint32_t number) {
    constexpr int kDown = 23 - mantissa, kExponents = width - 1 - mantissa;
    constexpr std::uint32_t kBits = 0x80000000u | ((1u << (width - 1)) - 1u) << kDown;
    const auto signed_bits = static_cast<std::int32_t>(number << (32 - width)) >> (32 - width - kDown);
    constexpr int kPower = 127 - ((1 << (kExponents - 1)) - 1);
    return float_of_bits(static_cast<std::uint32_t>(signed_bits) & kBits) *
           float_of_bits((127u + kPower) << 23);
  }
};

}  // namespace switchyard::gpu

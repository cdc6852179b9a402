#include "kernels/packed/packed_block.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "core/e4m3.h"
#include "core/error.h"
#include "core/half.h"

namespace switchyard {
namespace {

using Values = std::array<float, kGroupInputs>;

std::uint16_t load_half(const std::byte* block, std::int64_t i) {
  std::uint16_t half = 0;
  std::memcpy(&half, block + 2 * i, sizeof half);
  return half;
}

void store_half(std::uint16_t half, std::byte* block, std::int64_t i) {
  std::memcpy(block + 2 * i, &half, sizeof half);
}

std::int8_t rounded(float x, float least, float most) {
  return static_cast<std::int8_t>(std::nearbyint(std::clamp(x, least, most)));
}

float largest_magnitude(const Values& values) {
  float largest = 0;
  for (const float x : values) largest = std::max(largest, std::abs(x));
  return largest;
}

PackedGroup nearest_int8(const Values& values) {
  PackedGroup group;
  group.scale = float_to_half(largest_magnitude(values) / 127);
  const float scale = half_to_float(static_cast<std::uint16_t>(group.scale));
  if (scale == 0) return group;
  for (std::size_t i = 0; i < values.size(); ++i) group.numbers[i] = rounded(values[i] / scale, -127, 127);
  return group;
}

// Numbers of values that are scaled by 1 / scale, and how good they are.
struct Int4Trial {
  float fitted = 0;  // the scale with the smallest error for these numbers
  float gain = 0;    // by how much it lowers the sum of squared values
};
Int4Trial try_int4(const Values& values, float inverse) {
  float products = 0, squares = 0;
  for (const float x : values) {
    const float q = std::nearbyint(std::clamp(x * inverse, -8.0f, 7.0f));
    products += x * q;
    squares += q * q;
  }
  if (squares == 0) return {};
  return {products / squares, products * products / squares};
}

PackedGroup nearest_int4(const Values& values) {
  PackedGroup group;
  float extreme = 0;  // of the largest magnitude, with its sign
  for (const float x : values) {
    if (std::abs(x) > std::abs(extreme)) extreme = x;
  }
  if (extreme == 0) return group;
  constexpr int kTrials = 17;
  Int4Trial best;
  for (int i = 0; i < kTrials; ++i) {
    const float number =
        -8.0f + 0.125f * static_cast<float>(i - 5);  // of the extreme value: -8.625 .. -6.625
    const Int4Trial trial = try_int4(values, number / extreme);
    if (trial.gain > best.gain) best = trial;
  }
  group.scale = float_to_half(best.fitted);
  const float scale = half_to_float(static_cast<std::uint16_t>(group.scale));
  if (scale == 0) return group;
  for (std::size_t i = 0; i < values.size(); ++i) group.numbers[i] = rounded(values[i] / scale, -8, 7);
  return group;
}

PackedGroup nearest_int4a(const Values& values) {
  PackedGroup group;
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  group.offset = float_to_half(*least);
  const float offset = half_to_float(group.offset);
  group.scale = float_to_half((*most - offset) / 15);
  const float scale = half_to_float(static_cast<std::uint16_t>(group.scale));
  if (scale == 0 || !std::isfinite(scale)) return group;  // too large: pack_weights() says so
  for (std::size_t i = 0; i < values.size(); ++i)
    group.numbers[i] = rounded((values[i] - offset) / scale, 0, 15);
  return group;
}

// The nearest e2m1 to x, ties to the even mantissa.
std::int8_t nearest_fp4(float x) {
  const float magnitude = std::abs(x);
  int best = 0;
  for (int i = 1; i < 8; ++i) {
    const float middle = (kFp4[static_cast<std::size_t>(i - 1)] + kFp4[static_cast<std::size_t>(i)]) / 2;
    if (magnitude > middle || (magnitude == middle && i % 2 == 0)) best = i;
  }
  return static_cast<std::int8_t>(best | (std::signbit(x) ? 8 : 0));
}

PackedGroup nearest_mxfp4(const Values& values) {
  PackedGroup group;
  const float largest = largest_magnitude(values);
  if (largest == 0) return group;
  constexpr int kMostExponent = 2;  // of e2m1: 6 = 1.5 · 2²
  group.scale = static_cast<std::uint16_t>(std::clamp(std::ilogb(largest) - kMostExponent + 127, 0, 254));
  const float scale = mxfp4_scale(group.scale);
  for (std::size_t i = 0; i < values.size(); ++i) group.numbers[i] = nearest_fp4(values[i] / scale);
  return group;
}

}  // namespace

namespace {

std::uint32_t load_word(const std::byte* at) {
  std::uint32_t word = 0;
  std::memcpy(&word, at, sizeof word);
  return word;
}

void store_word(std::uint32_t word, std::byte* at) {
  std::memcpy(at, &word, sizeof word);
}

// Returns the constant that the format adds to each number that it stores.
int bias_of(DType packed) {
  return packed == DType::packed_q6_k ? 32 : 0;
}

// Input of the i-th half of word u from below.
std::size_t input_of_half(std::size_t u, std::size_t i) {
  return 8 * u + i / 2 + 4 * (i % 2);
}

}  // namespace

PackedGroup read_group(DType packed, const std::byte* block, std::int64_t output, std::int64_t group) {
  PackedGroup values;
  const std::byte* const words = block + header_bytes(packed) + group * group_bytes(packed) + 4 * output;
  if (has_bytes(packed)) {
    for (std::size_t u = 0; u < 8; ++u) std::memcpy(values.numbers.data() + 4 * u, words + u * kWordBytes, 4);
  } else {
    const auto high = static_cast<std::size_t>(high_bits(packed));
    for (std::size_t u = 0; u < 4; ++u) {
      const std::uint32_t word = load_word(words + u * kWordBytes);
      // Upper bits of the numbers of this word.
      const std::uint32_t upper =
          high == 0 ? 0 : load_word(words + (4 + u * high / 4) * kWordBytes) >> u * 8 * high % 32;
      for (std::size_t i = 0; i < 8; ++i) {
        int number = static_cast<int>((word >> 4 * i & 15) | (upper >> i * high & ((1u << high) - 1)) << 4);
        if (packed == DType::packed_int4 && number >= 8) number -= 16;
        values.numbers[input_of_half(u, i)] = static_cast<std::int8_t>(number - bias_of(packed));
      }
    }
  }
  if (packed == DType::packed_mxfp4) {
    values.scale = std::to_integer<std::uint8_t>(block[output]);
    return values;
  }
  if (packed == DType::packed_fp8) {
    values.scale = load_word(block + 4 * output);
    return values;
  }
  values.scale = load_half(block, output);
  if (has_offset(packed)) values.offset = load_half(block, kBlockOutputs + output);
  if (!is_k_quant(packed)) return values;
  for (std::int64_t half = 0; half < 2; ++half) {
    const std::byte byte =
        block[scale_factors_at(packed, group) + half % scales_of(packed) * kBlockOutputs + output];
    values.scale_factors[static_cast<std::size_t>(half)] = packed == DType::packed_q6_k
                                                               ? std::to_integer<std::int8_t>(byte)
                                                               : std::to_integer<std::uint8_t>(byte);
  }
  if (has_offset(packed))
    values.offset_factor = std::to_integer<std::uint8_t>(block[offset_factors_at(packed, group) + output]);
  return values;
}

void write_group(DType packed, const PackedGroup& values, std::byte* block, std::int64_t output,
                 std::int64_t group) {
  std::byte* const words = block + header_bytes(packed) + group * group_bytes(packed) + 4 * output;
  if (has_bytes(packed)) {
    for (std::size_t u = 0; u < 8; ++u) std::memcpy(words + u * kWordBytes, values.numbers.data() + 4 * u, 4);
  } else {
    const auto high = static_cast<std::size_t>(high_bits(packed));
    const int bias = bias_of(packed);
    std::array<std::uint32_t, 2> upper = {};
    for (std::size_t u = 0; u < 4; ++u) {
      std::uint32_t word = 0;
      for (std::size_t i = 0; i < 8; ++i) {
        const auto number = static_cast<std::uint32_t>(values.numbers[input_of_half(u, i)] + bias);
        word |= (number & 15) << 4 * i;
        if (high > 0) upper[u * high / 4] |= (number >> 4 & ((1u << high) - 1)) << (u * 8 + i) * high % 32;
      }
      store_word(word, words + u * kWordBytes);
    }
    for (std::size_t i = 0; i < high; ++i) store_word(upper[i], words + (4 + i) * kWordBytes);
  }
  if (packed == DType::packed_mxfp4) {
    block[output] = std::byte{static_cast<std::uint8_t>(values.scale)};
    return;
  }
  if (packed == DType::packed_fp8) return store_word(values.scale, block + 4 * output);
  store_half(static_cast<std::uint16_t>(values.scale), block, output);
  if (has_offset(packed)) store_half(values.offset, block, kBlockOutputs + output);
  if (!is_k_quant(packed)) return;
  for (std::int64_t half = 0; half < scales_of(packed); ++half)
    block[scale_factors_at(packed, group) + half * kBlockOutputs + output] =
        static_cast<std::byte>(values.scale_factors[static_cast<std::size_t>(half)] & 0xff);
  if (has_offset(packed)) block[offset_factors_at(packed, group) + output] = std::byte{values.offset_factor};
}

Values values_of(DType packed, const PackedGroup& group) {
  Values values;
  if (packed == DType::packed_mxfp4) {
    const float scale = mxfp4_scale(group.scale);
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = scale * fp4_to_float(static_cast<std::uint32_t>(group.numbers[i]));
    return values;
  }
  if (packed == DType::packed_fp8) {
    const auto scale = std::bit_cast<float>(group.scale);
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = scale * e4m3_to_float(static_cast<std::uint8_t>(group.numbers[i]));
    return values;
  }
  const float both = half_to_float(static_cast<std::uint16_t>(group.scale));
  std::array<float, 2> scales = {both, both};
  float offset = half_to_float(group.offset);
  if (is_k_quant(packed)) {
    for (std::size_t half = 0; half < 2; ++half)
      scales[half] *= static_cast<float>(group.scale_factors[half]);
    offset = -(offset * static_cast<float>(group.offset_factor));
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = scales[i / 16] * static_cast<float>(group.numbers[i]);
    if (has_offset(packed)) values[i] += offset;
  }
  return values;
}

PackedGroup nearest_group(DType packed, const Values& values) {
  CHECK(packed <= DType::packed_mxfp4, "{}", name_of(packed));
  switch (packed) {
    case DType::packed_int8:
      return nearest_int8(values);
    case DType::packed_int4:
      return nearest_int4(values);
    case DType::packed_int4a:
      return nearest_int4a(values);
    default:
      return nearest_mxfp4(values);
  }
}

}  // namespace switchyard

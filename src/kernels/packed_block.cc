#include "kernels/packed_block.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "core/half.h"

namespace switchyard {
namespace {

using Values = std::array<float, kBlockInputs>;

// Where a number of an output is: its byte in the block, and whether it is the byte's upper half.
struct NumberPlace {
  std::int64_t byte;
  bool upper;
};
NumberPlace place_of_number(DType packed, std::int64_t input, std::int64_t output) {
  const std::int64_t first = header_bytes(packed) + 4 * output;
  if (has_bytes(packed)) return {first + input / 4 * kWordBytes + input % 4, false};
  return {first + input / 8 * kWordBytes + input % 4, input % 8 >= 4};
}

std::uint16_t load_half(const std::byte* block, std::int64_t i) {
  std::uint16_t half = 0;
  std::memcpy(&half, block + 2 * i, sizeof half);
  return half;
}

void store_half(std::uint16_t half, std::byte* block, std::int64_t i) {
  std::memcpy(block + 2 * i, &half, sizeof half);
}

float power_of_two(std::uint16_t exponent) {  // 2^(exponent - 127); 2^-127 is no normal number
  return std::bit_cast<float>(exponent == 0 ? 0x00400000u : std::uint32_t{exponent} << 23);
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
  const float scale = half_to_float(group.scale);
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
  const float scale = half_to_float(group.scale);
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
  const float scale = half_to_float(group.scale);
  if (scale == 0) return group;
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
  const float scale = power_of_two(group.scale);
  for (std::size_t i = 0; i < values.size(); ++i) group.numbers[i] = nearest_fp4(values[i] / scale);
  return group;
}

}  // namespace

PackedGroup read_group(DType packed, const std::byte* block, std::int64_t output) {
  PackedGroup group;
  for (std::int64_t i = 0; i < kBlockInputs; ++i) {
    const NumberPlace place = place_of_number(packed, i, output);
    const auto byte = std::to_integer<std::uint8_t>(block[place.byte]);
    int number = static_cast<std::int8_t>(byte);
    if (!has_bytes(packed)) {
      number = place.upper ? byte >> 4 : byte & 15;
      if (packed == DType::packed_int4 && number >= 8) number -= 16;
    }
    group.numbers[static_cast<std::size_t>(i)] = static_cast<std::int8_t>(number);
  }
  if (packed == DType::packed_mxfp4) {
    group.scale = std::to_integer<std::uint8_t>(block[output]);
  } else {
    group.scale = load_half(block, output);
    if (packed == DType::packed_int4a) group.offset = load_half(block, kBlockOutputs + output);
  }
  return group;
}

void write_group(DType packed, const PackedGroup& group, std::byte* block, std::int64_t output) {
  const auto number = [&](std::size_t i) {
    return std::uint32_t{static_cast<std::uint8_t>(group.numbers[i])};
  };
  std::byte* at = block + header_bytes(packed) + 4 * output;
  const std::size_t in_word = has_bytes(packed) ? 4 : 8;
  for (std::size_t first = 0; first < group.numbers.size(); first += in_word, at += kWordBytes) {
    std::uint32_t word = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      const std::uint32_t byte =
          has_bytes(packed) ? number(first + i) : (number(first + i) & 15) | number(first + 4 + i) << 4;
      word |= (byte & 0xff) << 8 * i;
    }
    std::memcpy(at, &word, sizeof word);
  }
  if (packed == DType::packed_mxfp4) {
    block[output] = std::byte{static_cast<std::uint8_t>(group.scale)};
    return;
  }
  store_half(group.scale, block, output);
  if (packed == DType::packed_int4a) store_half(group.offset, block, kBlockOutputs + output);
}

Values values_of(DType packed, const PackedGroup& group) {
  const bool fp4 = packed == DType::packed_mxfp4;
  const float scale = fp4 ? power_of_two(group.scale) : half_to_float(group.scale);
  const float offset = half_to_float(group.offset);
  Values values;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const int number = group.numbers[i];
    if (fp4) {
      const float magnitude = kFp4[static_cast<std::size_t>(number & 7)];
      values[i] = scale * ((number & 8) != 0 ? -magnitude : magnitude);
      continue;
    }
    values[i] = scale * static_cast<float>(number);
    if (packed == DType::packed_int4a) values[i] += offset;
  }
  return values;
}

PackedGroup nearest_group(DType packed, const Values& values) {
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

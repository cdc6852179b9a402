// Data that cases of several of attention's kernels have. Internal to kernels/attention.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/testing/cases.h"

namespace switchyard::selftest {

inline Bound attention_bound(DType dtype, double absolute) {
  return {dtype == DType::bf16 ? 0x1p-7 : 3e-6, absolute};
}

inline PoisonedArray random_int8(std::int64_t count, std::uint32_t seed) {
  const PoisonedArray numbers = PoisonedArray::integers(DType::f32, count, seed, 127);
  PoisonedArray made(DType::i8, count);
  for (std::int64_t i = 0; i < count; ++i)
    static_cast<std::int8_t*>(made.data())[i] = static_cast<std::int8_t>(numbers.at(i));
  return made;
}

// Scales of numbers around 1.
inline PoisonedArray random_scales(std::int64_t count, std::uint32_t seed) {
  PoisonedArray made = PoisonedArray::normal(DType::f32, count, seed, 0x1p-8f);
  for (std::int64_t i = 0; i < count; ++i) made.set(i, std::abs(made.at(i)));
  return made;
}

std::vector<Case> decode_attention_cases(std::uint32_t seed);

}  // namespace switchyard::selftest

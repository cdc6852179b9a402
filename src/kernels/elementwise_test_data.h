// Test data for the kernel tests: small integers, exact in bf16 and summed exactly in fp32, and outputs that
// start as NaN between guard bytes.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "core/dtype.h"
#include "kernels/dispatch.h"

namespace switchyard::kernel_test {

inline std::vector<Isa> every_isa() {
  std::vector<Isa> result;
  for (int i = 0; i <= static_cast<int>(machine_isa()); ++i) result.push_back(static_cast<Isa>(i));
  return result;
}

// A flat array of f32 or bf16 between two guards that must survive.
class Array {
 public:
  Array(DType dtype, std::int64_t count)
      : dtype_(dtype),
        count_(count),
        bytes_(2 * kGuard + static_cast<std::size_t>(count) * size_of(dtype), 0xa5) {
    for (std::int64_t i = 0; i < count; ++i) set(i, std::numeric_limits<float>::quiet_NaN());
  }

  // Integers in [-limit, limit].
  static Array integers(DType dtype, std::int64_t count, std::uint32_t seed, int limit = 3) {
    Array result(dtype, count);
    std::mt19937 generator(seed);
    const auto range = static_cast<std::uint32_t>(2 * limit + 1);
    for (std::int64_t i = 0; i < count; ++i) {
      result.set(i, static_cast<float>(static_cast<int>(generator() % range) - limit));
    }
    return result;
  }

  // Normally distributed values.
  static Array normal(DType dtype, std::int64_t count, std::uint32_t seed, float scale = 1.0f) {
    Array result(dtype, count);
    std::mt19937 generator(seed);
    std::normal_distribution<float> draw(0.0f, scale);
    for (std::int64_t i = 0; i < count; ++i) result.set(i, draw(generator));
    return result;
  }

  DType dtype() const { return dtype_; }
  std::int64_t size() const { return count_; }
  void* data() { return bytes_.data() + kGuard; }
  const void* data() const { return bytes_.data() + kGuard; }
  float* floats() { return static_cast<float*>(data()); }

  float at(std::int64_t i) const {
    if (dtype_ == DType::f32) return static_cast<const float*>(data())[i];
    return static_cast<float>(static_cast<const bfloat16*>(data())[i]);
  }
  void set(std::int64_t i, float value) {
    if (dtype_ == DType::f32) {
      static_cast<float*>(data())[i] = value;
    } else {
      static_cast<bfloat16*>(data())[i] = bfloat16(value);
    }
  }

  bool guards_intact() const {
    const auto intact = [](std::uint8_t byte) { return byte == 0xa5; };
    return std::all_of(bytes_.begin(), bytes_.begin() + kGuard, intact) &&
           std::all_of(bytes_.end() - kGuard, bytes_.end(), intact);
  }
  bool operator==(const Array& other) const { return dtype_ == other.dtype_ && bytes_ == other.bytes_; }

 private:
  static constexpr std::size_t kGuard = 64;
  DType dtype_;
  std::int64_t count_;
  std::vector<std::uint8_t> bytes_;
};

// Equal values (a zero of either sign is zero, NaN equals nothing) and intact guards.
inline ::testing::AssertionResult same(const Array& found, const Array& expected) {
  if (!found.guards_intact()) return ::testing::AssertionFailure() << "wrote outside its output";
  if (found.size() != expected.size()) return ::testing::AssertionFailure() << "sizes differ";
  for (std::int64_t i = 0; i < found.size(); ++i) {
    if (!(found.at(i) == expected.at(i))) {
      return ::testing::AssertionFailure()
             << "element " << i << " is " << found.at(i) << ", not " << expected.at(i);
    }
  }
  return ::testing::AssertionSuccess();
}

// |found - expected| <= relative·|expected| + absolute everywhere, no NaN, and intact guards.
inline ::testing::AssertionResult near(const Array& found, const Array& expected, float relative,
                                       float absolute) {
  if (!found.guards_intact()) return ::testing::AssertionFailure() << "wrote outside its output";
  if (found.size() != expected.size()) return ::testing::AssertionFailure() << "sizes differ";
  for (std::int64_t i = 0; i < found.size(); ++i) {
    if (!(std::abs(found.at(i) - expected.at(i)) <= relative * std::abs(expected.at(i)) + absolute)) {
      return ::testing::AssertionFailure()
             << "element " << i << " is " << found.at(i) << ", not " << expected.at(i);
    }
  }
  return ::testing::AssertionSuccess();
}

}  // namespace switchyard::kernel_test

// Single: one number of a CPU as formulas-inl.h asks for it, with the functions of the C library.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/dtype.h"

namespace switchyard {

struct Single {
  static constexpr std::int64_t kStep = 1;

  float value = 0;

  explicit Single(float of) : value(of) {}

  template <class T>
  static Single load(const T* from, std::int64_t /*count*/) {
    return Single(static_cast<float>(*from));
  }
  template <class T>
  void store(T* to, std::int64_t /*count*/) const {
    *to = T(value);
  }
  // Element i of an array of f32 or bf16.
  static Single load(const void* from, DType dtype, std::int64_t i) {
    return dtype == DType::f32 ? load(static_cast<const float*>(from) + i, 1)
                               : load(static_cast<const bfloat16*>(from) + i, 1);
  }
  void store(void* to, DType dtype, std::int64_t i) const {
    dtype == DType::f32 ? store(static_cast<float*>(to) + i, 1) : store(static_cast<bfloat16*>(to) + i, 1);
  }
  float sum() const { return value; }

  friend Single operator+(Single x, Single y) { return Single(x.value + y.value); }
  friend Single operator-(Single x, Single y) { return Single(x.value - y.value); }
  friend Single operator*(Single x, Single y) { return Single(x.value * y.value); }
  friend Single operator/(Single x, Single y) { return Single(x.value / y.value); }
  friend bool operator<(Single x, Single y) { return x.value < y.value; }
  friend bool operator>(Single x, Single y) { return x.value > y.value; }
  friend bool operator<=(Single x, Single y) { return x.value <= y.value; }
  friend bool operator>=(Single x, Single y) { return x.value >= y.value; }
  friend Single fused(Single x, Single y, Single z) { return Single(std::fma(x.value, y.value, z.value)); }
  friend Single select(bool condition, Single x, Single y) { return condition ? x : y; }
  friend Single tanh_of(Single x) { return Single(std::tanh(x.value)); }
  friend Single exp_of(Single x) { return Single(std::exp(x.value)); }
  friend Single softplus(Single x) {
    return Single(std::fmax(x.value, 0.0f) + std::log1p(std::exp(-std::abs(x.value))));
  }
  friend Single sigmoid(Single x) { return Single(1 / (1 + std::exp(-x.value))); }
};

}  // namespace switchyard

// Scalar truth for rms_norm.h, in double. Shapes as there; T and S are float, bfloat16 or double. Of rows
// that are split: `sums` [rows] of the parts, which make the sums that the others are given, and `whole_dim`.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/pointwise/reference/reference_element.h"

namespace switchyard::reference {

template <typename T>
double square_sum(const T* x, std::int64_t dim) {
  double sum = 0;
  for (std::int64_t i = 0; i < dim; ++i) sum += to_double(x[i]) * to_double(x[i]);
  return sum;
}

template <typename T, typename S>
double scaled_dot(const T* x, const S* scale, const T* dy, std::int64_t dim, double offset = 0) {
  double sum = 0;
  for (std::int64_t i = 0; i < dim; ++i)
    sum += to_double(dy[i]) * (to_double(scale[i]) + offset) * to_double(x[i]);
  return sum;
}

template <typename T, typename S, typename R>
void rms_norm(const T* x, const S* scale, std::int64_t rows, std::int64_t dim, double eps, T* y, R* rstd,
              std::int64_t whole_dim = 0, const R* sums = nullptr, double offset = 0) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const double sum = sums != nullptr ? to_double(sums[r]) : square_sum(x + r * dim, dim);
    const double inverse = 1 / std::sqrt(sum / static_cast<double>(sums != nullptr ? whole_dim : dim) + eps);
    rstd[r] = static_cast<R>(inverse);
    for (std::int64_t i = 0; i < dim; ++i) {
      y[r * dim + i] = from_double<T>(to_double(x[r * dim + i]) * inverse * (to_double(scale[i]) + offset));
    }
  }
}

// With u = dy * scale: dx = rstd * u - x * rstd^3 * mean(u * x); dscale = sum_r dy * x * rstd.
template <typename T, typename S, typename R>
void rms_norm_backward(const T* x, const S* scale, const R* rstd, const T* dy, std::int64_t rows,
                       std::int64_t dim, T* dx, R* dscale, std::int64_t whole_dim = 0,
                       const R* sums = nullptr, double offset = 0) {
  for (std::int64_t i = 0; i < dim; ++i) {
    double sum = 0;
    for (std::int64_t r = 0; r < rows; ++r) {
      sum += to_double(dy[r * dim + i]) * to_double(x[r * dim + i]) * to_double(rstd[r]);
    }
    dscale[i] = static_cast<R>(sum);
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    const double inverse = to_double(rstd[r]);
    const double sum =
        sums != nullptr ? to_double(sums[r]) : scaled_dot(x + r * dim, scale, dy + r * dim, dim, offset);
    const double mean = sum / static_cast<double>(sums != nullptr ? whole_dim : dim);
    for (std::int64_t i = 0; i < dim; ++i) {
      const double u = to_double(dy[r * dim + i]) * (to_double(scale[i]) + offset);
      const double value = inverse * (u - to_double(x[r * dim + i]) * inverse * inverse * mean);
      dx[r * dim + i] = from_double<T>(value);
    }
  }
}

}  // namespace switchyard::reference

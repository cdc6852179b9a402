// Scalar truth for softmax.h, in double. Shapes as there.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace switchyard::reference {

template <typename T>
void softmax_rows(const T* x, std::int64_t rows, std::int64_t cols, T* y) {
  for (std::int64_t r = 0; r < rows; ++r) {
    double maximum = -std::numeric_limits<double>::infinity();
    for (std::int64_t c = 0; c < cols; ++c) maximum = std::max(maximum, static_cast<double>(x[r * cols + c]));
    double sum = 0;
    for (std::int64_t c = 0; c < cols; ++c) sum += std::exp(static_cast<double>(x[r * cols + c]) - maximum);
    for (std::int64_t c = 0; c < cols; ++c) {
      y[r * cols + c] = static_cast<T>(std::exp(static_cast<double>(x[r * cols + c]) - maximum) / sum);
    }
  }
}

template <typename T>
void softmax_rows_backward(const T* y, const T* dy, std::int64_t rows, std::int64_t cols, T* dx) {
  const auto at = [](const T* x, std::int64_t i) { return static_cast<double>(x[i]); };
  for (std::int64_t r = 0; r < rows; ++r) {
    double dot = 0;
    for (std::int64_t i = r * cols; i < (r + 1) * cols; ++i) dot += at(y, i) * at(dy, i);
    for (std::int64_t i = r * cols; i < (r + 1) * cols; ++i)
      dx[i] = static_cast<T>(at(y, i) * (at(dy, i) - dot));
  }
}

template <typename T>
void sigmoid(const T* x, std::int64_t rows, std::int64_t cols, T* y) {
  for (std::int64_t i = 0; i < rows * cols; ++i)
    y[i] = static_cast<T>(1 / (1 + std::exp(-static_cast<double>(x[i]))));
}

template <typename T>
void sigmoid_backward(const T* y, const T* dy, std::int64_t rows, std::int64_t cols, T* dx) {
  for (std::int64_t i = 0; i < rows * cols; ++i) {
    const auto value = static_cast<double>(y[i]);
    dx[i] = static_cast<T>(static_cast<double>(dy[i]) * value * (1 - value));
  }
}

}  // namespace switchyard::reference

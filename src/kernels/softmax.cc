#include "kernels/softmax.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace switchyard {
namespace {

constexpr std::int64_t elements_per_piece =
    4096;  // about 20 us of exp: well above the cost of handing out a piece

std::int64_t row_grain(std::int64_t cols) {
  return std::max<std::int64_t>(1, elements_per_piece / std::max<std::int64_t>(cols, 1));
}

void softmax_row(const float* x, std::int64_t cols, float* y) {
  float maximum = -std::numeric_limits<float>::infinity();
  for (std::int64_t c = 0; c < cols; ++c) maximum = std::max(maximum, x[c]);
  float sum = 0;
  for (std::int64_t c = 0; c < cols; ++c) {
    y[c] = std::exp(x[c] - maximum);
    sum += y[c];
  }
  for (std::int64_t c = 0; c < cols; ++c) y[c] /= sum;
}

}  // namespace

void softmax_rows(ThreadPool& pool, const float* x, std::int64_t rows, std::int64_t cols, float* y) {
  pool.for_range(rows, row_grain(cols), [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) softmax_row(x + r * cols, cols, y + r * cols);
  });
}

void softmax_rows_backward(ThreadPool& pool, const float* y, const float* dy, std::int64_t rows,
                           std::int64_t cols, float* dx) {
  pool.for_range(rows, row_grain(cols), [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      float dot = 0;
      for (std::int64_t i = r * cols; i < (r + 1) * cols; ++i) dot += y[i] * dy[i];
      for (std::int64_t i = r * cols; i < (r + 1) * cols; ++i) dx[i] = y[i] * (dy[i] - dot);
    }
  });
}

void sigmoid(ThreadPool& pool, const float* x, std::int64_t rows, std::int64_t cols, float* y) {
  pool.for_range(rows * cols, elements_per_piece, [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) y[i] = 1 / (1 + std::exp(-x[i]));
  });
}

void sigmoid_backward(ThreadPool& pool, const float* y, const float* dy, std::int64_t rows, std::int64_t cols,
                      float* dx) {
  pool.for_range(rows * cols, elements_per_piece, [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) dx[i] = dy[i] * y[i] * (1 - y[i]);
  });
}

}  // namespace switchyard

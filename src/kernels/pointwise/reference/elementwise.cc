// The scalar truth of the flat operations and the gated activation.
#include <cmath>

#include "kernels/pointwise/elementwise_problem.h"
#include "kernels/pointwise/reference/elementwise_access.h"

namespace switchyard::ref {
namespace {

float sigmoid(float x) {
  return 1.0f / (1.0f + std::exp(-x));
}

}  // namespace

// a has the dtype of the output, b may be narrower.
void add(const FlatProblem& p, std::int64_t begin, std::int64_t end) {
  for (std::int64_t i = begin; i < end; ++i) {
    put(p.out, p.out_dtype, i, at(p.a, p.out_dtype, i) + at(p.b, p.dtype, i));
  }
}

void scale(const FlatProblem& p, std::int64_t begin, std::int64_t end) {
  for (std::int64_t i = begin; i < end; ++i) put(p.out, p.out_dtype, i, at(p.a, p.dtype, i) * p.factor);
}

void convert(const FlatProblem& p, std::int64_t begin, std::int64_t end) {
  for (std::int64_t i = begin; i < end; ++i) put(p.out, p.out_dtype, i, at(p.a, p.dtype, i));
}

void sum_of_squares(DType dtype, const void* a, std::int64_t begin, std::int64_t end, SquareSums& squares) {
  for (std::int64_t i = begin; i < end; ++i) {
    const double x = static_cast<double>(at(a, dtype, i));
    squares.sums[(i - begin) % SquareSums::kCount] += x * x;
  }
}

void swiglu(const SwigluProblem& p, std::int64_t row_begin, std::int64_t row_end) {
  for (std::int64_t row = row_begin; row < row_end; ++row) {
    const float w = p.w == nullptr ? 1.0f : p.w[row];
    for (std::int64_t i = row * p.cols; i < (row + 1) * p.cols; ++i) {
      const float gate = at(p.gate, p.dtype, i);
      put(p.h, p.dtype, i, gate * sigmoid(gate) * at(p.up, p.dtype, i) * w);
    }
  }
}

void swiglu_backward(const SwigluProblem& p, std::int64_t row_begin, std::int64_t row_end) {
  for (std::int64_t row = row_begin; row < row_end; ++row) {
    const float w = p.w == nullptr ? 1.0f : p.w[row];
    float dw = 0;
    for (std::int64_t i = row * p.cols; i < (row + 1) * p.cols; ++i) {
      const float gate = at(p.gate, p.dtype, i), up = at(p.up, p.dtype, i), dh = at(p.dh, p.dtype, i);
      const float s = sigmoid(gate), silu = gate * s;
      dw += dh * silu * up;
      put(p.dup, p.dtype, i, dh * w * silu);
      put(p.dgate, p.dtype, i, dh * w * up * s * (1.0f + gate * (1.0f - s)));
    }
    if (p.dw != nullptr) p.dw[row] = dw;
  }
}

}  // namespace switchyard::ref

// The scalar truth of the flat operations and the gated activation.
#include <cmath>

#include "kernels/element/kernels.h"
#include "kernels/pointwise/elementwise_problem.h"
#include "kernels/pointwise/reference/elementwise_access.h"

namespace switchyard::ref {
namespace {

float sigmoid(float x) {
  return 1.0f / (1.0f + std::exp(-x));
}

float weight_of(const Elements& p, std::int64_t row) {
  return p.row_number == nullptr ? 1.0f : at(p.row_number, p.row_dtype, row);
}

}  // namespace

// a has the dtype of the output, b may be narrower; in[1] of each row or of all.
void add(const Elements& p, std::int64_t begin, std::int64_t end) {
  for (std::int64_t i = begin * p.columns; i < end * p.columns; ++i)
    put(p.out[0].data, p.out_dtype, i,
        at(p.in[0].data, p.out_dtype, i) + at(p.in[1].data, p.dtype, i + i / p.columns * p.in[1].shift));
}

void scale(const Elements& p, std::int64_t begin, std::int64_t end) {
  for (std::int64_t i = begin; i < end; ++i)
    put(p.out[0].data, p.out_dtype, i, at(p.in[0].data, p.dtype, i) * p.number);
}

void convert(const Elements& p, std::int64_t begin, std::int64_t end) {
  for (std::int64_t i = begin * p.columns; i < end * p.columns; ++i)
    put(p.out[0].data, p.out_dtype, i + i / p.columns * p.out[0].shift, at(p.in[0].data, p.dtype, i));
}

void sum_of_squares(DType dtype, const void* a, std::int64_t begin, std::int64_t end, SquareSums& squares) {
  for (std::int64_t i = begin; i < end; ++i) {
    const double x = static_cast<double>(at(a, dtype, i));
    squares.sums[(i - begin) % SquareSums::kCount] += x * x;
  }
}

void swiglu(const Elements& p, std::int64_t begin, std::int64_t end) {
  for (std::int64_t i = begin * p.columns; i < end * p.columns; ++i) {
    const float gate = at(p.in[0].data, p.dtype, i);
    put(p.out[0].data, p.dtype, i,
        gate * sigmoid(gate) * at(p.in[1].data, p.dtype, i) * weight_of(p, i / p.columns));
  }
}

void swiglu_backward(const Elements& p, std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row) {
    const float w = weight_of(p, row);
    float dw = 0;
    for (std::int64_t i = row * p.columns; i < (row + 1) * p.columns; ++i) {
      const float gate = at(p.in[0].data, p.dtype, i), up = at(p.in[1].data, p.dtype, i),
                  dh = at(p.in[3].data, p.dtype, i);
      const float s = sigmoid(gate), silu = gate * s;
      dw += dh * silu * up;
      put(p.out[1].data, p.dtype, i, dh * w * silu);
      put(p.out[0].data, p.dtype, i, dh * w * up * s * (1.0f + gate * (1.0f - s)));
    }
    if (p.sum != nullptr) put(p.sum, p.sum_dtype, row, dw);
  }
}

}  // namespace switchyard::ref

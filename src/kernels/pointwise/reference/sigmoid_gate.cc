// The scalar truth of the gate of an output.
#include <cmath>

#include "kernels/element/kernels.h"
#include "kernels/pointwise/reference/elementwise_access.h"

namespace switchyard::ref {
namespace {

float gate_of(const Elements& p, std::int64_t row, std::int64_t i) {
  return p.row_number != nullptr ? at(p.row_number, p.row_dtype, row) : at(p.in[1].data, p.dtype, i);
}

}  // namespace

void sigmoid_gate(const Elements& p, std::int64_t row_begin, std::int64_t row_end) {
  for (std::int64_t i = row_begin * p.columns; i < row_end * p.columns; ++i)
    put(p.out[0].data, p.dtype, i,
        at(p.in[0].data, p.dtype, i) / (1 + std::exp(-gate_of(p, i / p.columns, i))));
}

void sigmoid_gate_backward(const Elements& p, std::int64_t row_begin, std::int64_t row_end) {
  for (std::int64_t row = row_begin; row < row_end; ++row) {
    double sum = 0;
    for (std::int64_t i = row * p.columns; i < (row + 1) * p.columns; ++i) {
      const float sigmoid = 1 / (1 + std::exp(-gate_of(p, row, i))), dout = at(p.in[2].data, p.dtype, i);
      const float slope = dout * at(p.in[0].data, p.dtype, i) * sigmoid * (1 - sigmoid);
      put(p.out[0].data, p.dtype, i, dout * sigmoid);
      if (p.out[1].data != nullptr) put(p.out[1].data, p.dtype, i, slope);
      sum += static_cast<double>(slope);
    }
    if (p.sum != nullptr) put(p.sum, p.sum_dtype, row, static_cast<float>(sum));
  }
}

}  // namespace switchyard::ref

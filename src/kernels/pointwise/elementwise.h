// Flat operations on the elements of views, and the gated activation. Elements are f32 or bf16; arithmetic is
// fp32, rounded once. An output may be one of the inputs (same element positions), but must not overlap them
// otherwise. Views have no gaps unless said. Bit-identical for any number of threads.
#pragma once

#include <span>

#include "core/tensor.h"
#include "core/thread_pool.h"

namespace switchyard {

// out = a + b. a has the dtype of out; so has b, or out is f32.
void add(ThreadPool& pool, const TensorView& a, const TensorView& b, const TensorView& out);
// out[r] = rows[r] + row. rows, row and out are of one dtype; row [columns], the others
// have whole rows of it.
void add_to_rows(ThreadPool& pool, const TensorView& rows, const TensorView& row, const TensorView& out);
// out = x · factor, of one dtype.
void scale(ThreadPool& pool, const TensorView& x, float factor, const TensorView& out);

// out = x: f32 <-> bf16, or a copy when the two are the same. Not in place between different dtypes. Rows of
// a two-dimensional out may be any distance apart.
void convert(ThreadPool& pool, const TensorView& x, const TensorView& out);
Tensor converted(ThreadPool& pool, const Tensor& x, DType dtype);  // x itself where it has the dtype

// sum = the sum of x[i]² in double, in an order that depends on the number of elements alone (square_sums.h;
// a GPU has another one). The host need not wait for it, and a GPU makes many sums at once.
struct SquareSumArgs {
  TensorView x;
  TensorView sum;  // [1] f64, of the device of x
};
void sums_of_squares(ThreadPool& pool, std::span<const SquareSumArgs> args);
// Returns the sum of x[i]² of an x in the host's memory. 0 in a plan.
double sum_of_squares(ThreadPool& pool, const TensorView& x);

// hidden = silu(gate) · up · row_weights[row]. silu(g) = g / (1 + exp(-g)).
struct SwigluArgs {
  TensorView gate, up;     // [rows, columns], or more dims, of which the last is the columns
  TensorView row_weights;  // [rows] f32; undefined: 1
  TensorView hidden;       // as gate
};
void swiglu(ThreadPool& pool, const SwigluArgs& args);

// Gradients of swiglu. Where there are row weights, drow_weights[row] = sum over the columns of
// dhidden · silu(gate) · up.
struct SwigluBackwardArgs {
  TensorView gate, up, row_weights;  // as in SwigluArgs
  TensorView dhidden;                // as gate
  TensorView dgate, dup;             // as gate
  TensorView drow_weights;           // [rows] f32, with row weights only; undefined: not wanted
};
void swiglu_backward(ThreadPool& pool, const SwigluBackwardArgs& args);

}  // namespace switchyard

// Flat operations on n elements, and the gated activation. dtype is f32 or bf16; arithmetic is fp32, rounded
// once. Outputs may be one of the inputs (same element positions), but must not overlap otherwise.
// Bit-identical for any number of threads.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "core/tensor.h"
#include "core/thread_pool.h"

namespace switchyard {

void add(ThreadPool& pool, DType dtype, const void* a, const void* b, void* out, std::int64_t n);
void add_into_f32(ThreadPool& pool, float* accumulator, DType dtype, const void* x, std::int64_t n);
void scale(ThreadPool& pool, DType dtype, const void* x, float factor, void* out, std::int64_t n);
void multiply(ThreadPool& pool, DType dtype, const void* a, const void* b, void* out, std::int64_t n);

// f32 <-> bf16, or a copy when the two are the same. Not in place between different dtypes.
void convert(ThreadPool& pool, DType from, const void* x, DType to, void* out, std::int64_t n);
// The same for `rows` rows of n elements, one after the other in x, `stride` elements apart in out.
void convert_rows(ThreadPool& pool, DType from, const void* x, DType to, void* out, std::int64_t rows,
                  std::int64_t n, std::int64_t stride);
Tensor converted(ThreadPool& pool, const Tensor& x, DType dtype);  // x itself where it has the dtype

// Sum of x[i]² in double, in an order that depends on n alone (square_sums.h).
double sum_of_squares(ThreadPool& pool, DType dtype, const void* x, std::int64_t n);

// h = silu(gate) · up · w[row], all [rows, cols]; w [rows], null means 1. silu(g) = g / (1 + exp(-g)).
void swiglu(ThreadPool& pool, DType dtype, const void* gate, const void* up, const float* w,
            std::int64_t rows, std::int64_t cols, void* h);

// Gradients of swiglu from dh: dgate and dup [rows, cols], and, when w is given, dw[row] = sum over the
// columns of dh · silu(gate) · up. dw may be null.
void swiglu_backward(ThreadPool& pool, DType dtype, const void* gate, const void* up, const float* w,
                     const void* dh, std::int64_t rows, std::int64_t cols, void* dgate, void* dup, float* dw);

// out[a,c,b,d] = x[a,b,c,d]: swaps the two middle dims. Elements of any size in bytes; out must not overlap
// x.
void transpose_blocks(ThreadPool& pool, std::int64_t element_bytes, const void* x, std::int64_t a,
                      std::int64_t b, std::int64_t c, std::int64_t d, void* out);

}  // namespace switchyard

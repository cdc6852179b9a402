// Router score functions over rows of logits, in fp32 with the C library's exp: routing decides by comparing
// these numbers, so they are kept accurate rather than fast.
#pragma once

#include <cstdint>

#include "core/thread_pool.h"

namespace switchyard {

// y[r,:] = softmax(x[r,:]). x, y: [rows, cols] f32; y may be x.
void softmax_rows(ThreadPool& pool, const float* x, std::int64_t rows, std::int64_t cols, float* y);

// dx = y * (dy - sum_c y*dy) with y the output of softmax_rows. All [rows, cols] f32; dx may be dy.
void softmax_rows_backward(ThreadPool& pool, const float* y, const float* dy, std::int64_t rows,
                           std::int64_t cols, float* dx);

// y = 1 / (1 + exp(-x)). x, y: [rows, cols] f32; y may be x.
void sigmoid(ThreadPool& pool, const float* x, std::int64_t rows, std::int64_t cols, float* y);

// dx = dy * y * (1 - y) with y the output of sigmoid. All [rows, cols] f32; dx may be dy.
void sigmoid_backward(ThreadPool& pool, const float* y, const float* dy, std::int64_t rows, std::int64_t cols,
                      float* dx);

}  // namespace switchyard

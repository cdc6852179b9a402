// Rows sorted by expert, and the kernels that move them between token order and sorted order.
//
// A row is one (token, slot) pair; row t*K+k is slot k of token t. `start` and `end` select sorted positions
// [start, end): the rows outside it do not exist, and buffers of sorted rows hold end - start rows. Widths
// are any m >= 0, x is f32 or bf16, arithmetic is fp32. Results must not overlap operands. Bit-identical for
// any number of threads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/dtype.h"
#include "core/thread_pool.h"

namespace switchyard {

struct SortedRows {
  std::vector<std::int32_t> order;        // row at each sorted position
  std::vector<std::int32_t> revert;       // sorted position of each row
  std::vector<std::int64_t> group_sizes;  // rows of each expert, [experts]
};

// Stable counting sort of rows by expert id. CHECKs 0 <= id < experts.
SortedRows counting_sort(std::span<const std::int32_t> expert_ids, std::int32_t experts);

// out[i-start,:] = w[i] · x[index[i],:] for i in [start, end); w null means 1. `index` and w are indexed by
// sorted position. The product is fp32, rounded once. out [end-start, m] of `dtype`.
void ragged_gather(ThreadPool& pool, DType dtype, const void* x, std::int64_t m,
                   std::span<const std::int32_t> index, std::int64_t start, std::int64_t end, const float* w,
                   void* out);

// out[t,:] = sum over k of w[t,k] · x[position[t*slots+k]-start,:], in slot order, over the positions inside
// [start, end); w null means 1. A token with none gets zeros. out [position.size()/slots, m] of `out_dtype`.
void ragged_gather_reduce(ThreadPool& pool, DType dtype, const void* x, std::int64_t m,
                          std::span<const std::int32_t> position, std::int64_t slots, std::int64_t start,
                          std::int64_t end, const float* w, void* out, DType out_dtype);

// dw[t,k] = <dy[t,:], x[position[t*slots+k]-start,:]>, and 0 for a position outside [start, end).
// dy [tokens, m] of `dtype`, dw [tokens, slots].
void ragged_row_dot(ThreadPool& pool, DType dtype, const void* dy, const void* x, std::int64_t m,
                    std::span<const std::int32_t> position, std::int64_t slots, std::int64_t start,
                    std::int64_t end, float* dw);

}  // namespace switchyard

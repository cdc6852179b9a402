// Grouped matrix products: consecutive runs of rows, each times its group's own matrix.
//
// R rows are split into G groups: group g owns the next group_sizes[g] rows, and sum(group_sizes) = R. Any
// group may be empty or own every row; R may be 0. Operands and results are `dtype` (f32 or bf16) unless
// said, sums are fp32 and rounded once. Matrices are dense row-major; results must not overlap operands.
// Bit-identical for any number of threads.
#pragma once

#include <cstdint>
#include <span>

#include "core/dtype.h"
#include "core/thread_pool.h"

namespace switchyard {

// out[r,:] = lhs[r,:] · rhs[g(r)] + bias[g(r)].  lhs [R,k], rhs [G,k,n], bias [G,n] or null, out [R,n].
void gmm(ThreadPool& pool, DType dtype, const void* lhs, const void* rhs, const void* bias,
         std::span<const std::int64_t> group_sizes, std::int64_t k, std::int64_t n, void* out);

// Gradient of gmm for lhs: dlhs[r,:] = dy[r,:] · rhs[g(r)]ᵀ.  dy [R,n], rhs [G,k,n], dlhs [R,k].
void gmm_dlhs(ThreadPool& pool, DType dtype, const void* dy, const void* rhs,
              std::span<const std::int64_t> group_sizes, std::int64_t k, std::int64_t n, void* dlhs);

// Gradient of gmm for rhs: drhs[g] = lhs_gᵀ · dy_g over the rows of group g, zero for an empty group.
// lhs [R,k], dy [R,n], drhs [G,k,n] of `drhs_dtype` (f32 or bf16).
void gmm_drhs(ThreadPool& pool, DType dtype, const void* lhs, const void* dy,
              std::span<const std::int64_t> group_sizes, std::int64_t k, std::int64_t n, void* drhs,
              DType drhs_dtype);

// ---- Two products of the same rows, as a gated MLP has them
//
// Row r of the left operand is row index[r] of x [*, k], or row r where `index` is empty. With AMX one pass
// packs each row once for both products, straight from where it lies; elsewhere the rows are gathered first.

// out_i[r,:] = x[index[r],:] · rhs_i[g(r)] for i = 0, 1. Where `hidden` [R,n] is given, it becomes
// silu(out_0) · out_1 · row_weights[r], bit for bit what swiglu (elementwise.h) makes of them; kernels of
// tiles make it while the sums are hot.
void gmm_pair(ThreadPool& pool, DType dtype, const void* x, std::span<const std::int32_t> index,
              const void* rhs_0, const void* rhs_1, std::span<const std::int64_t> group_sizes, std::int64_t k,
              std::int64_t n, void* out_0, void* out_1, const float* row_weights = nullptr,
              void* hidden = nullptr);

// dlhs[r,:] = dy_0[r,:] · rhs_0[g(r)]ᵀ + dy_1[r,:] · rhs_1[g(r)]ᵀ, rounded once.
void gmm_dlhs_pair(ThreadPool& pool, DType dtype, const void* dy_0, const void* dy_1, const void* rhs_0,
                   const void* rhs_1, std::span<const std::int64_t> group_sizes, std::int64_t k,
                   std::int64_t n, void* dlhs);

// drhs_i[g] = (rows of group g of x)ᵀ · dy_i for i = 0, 1.
void gmm_drhs_pair(ThreadPool& pool, DType dtype, const void* x, std::span<const std::int32_t> index,
                   const void* dy_0, const void* dy_1, std::span<const std::int64_t> group_sizes,
                   std::int64_t k, std::int64_t n, void* drhs_0, void* drhs_1, DType drhs_dtype);

}  // namespace switchyard

// Grouped matrix products: consecutive runs of rows, each times its group's own matrix.
//
// R rows are split into G groups: group g owns the next group_sizes[g] rows. group_sizes is an int32 view [G]
// in the memory of the operands; the kernels read it and CHECK that the sizes sum to R. Any group may be
// empty or own every row; R may be 0. On the abstract device, where sizes cannot be read, the work is counted
// for groups that are as even as they can be.
//
// Operands and results have one dtype (f32 or bf16) unless said, sums are fp32 and rounded once. Views have
// no gaps; results must not overlap operands. Bit-identical for any number of threads.
//
// The right operand of gmm, gmm_pair and of the gradients for the left operand may be packed, [G, k/32, n/16]
// blocks (kernels/packed/packed_block.h), as gemm's may.
#pragma once

#include <array>

#include "core/tensor_view.h"
#include "core/thread_pool.h"

namespace switchyard {

// A low-rank part of a product: plus low[r,:] · rhs[g(r)], in the same sum.
struct GmmLow {
  TensorView low;  // [R,r]; undefined: none
  TensorView rhs;  // [G,r,n]
};

// out[r,:] = lhs[r,:] · rhs[g(r)] + bias[g(r)], plus out[r,:] when `accumulate`. Row r of the left operand is
// row index[r] of lhs where `index` is defined. Where `rhs` has fewer matrices than there are groups, so many
// groups one behind the other share one; the low-rank part's are each group's own.
struct GmmArgs {
  TensorView lhs;          // [R,k]; [*,k] with `index`
  TensorView rhs;          // [G,k,n]
  TensorView bias;         // [G,n]; undefined: none
  TensorView group_sizes;  // [G] i32
  TensorView out;          // [R,n] f32 or bf16
  bool accumulate = false;
  TensorView index = {};  // [R] i32
  GmmLow low = {};
};
void gmm(ThreadPool& pool, const GmmArgs& args);

// Gradient of gmm for lhs: dlhs[r,:] = dy[r,:] · rhs[g(r)]ᵀ, plus low[r,:] · low.rhs[g(r)]ᵀ.
struct GmmDlhsArgs {
  TensorView dy;           // [R,n]
  TensorView rhs;          // [G,k,n]
  TensorView group_sizes;  // [G] i32
  TensorView dlhs;         // [R,k]
  GmmLow low = {};         // rhs [G,k,r]
};
void gmm_dlhs(ThreadPool& pool, const GmmDlhsArgs& args);

// Gradient of gmm for rhs: drhs[g] = lhs_gᵀ · dy_g over the rows of group g, zero for an empty group.
struct GmmDrhsArgs {
  TensorView lhs;          // [R,k]; [*,k] with `index`
  TensorView dy;           // [R,n]
  TensorView group_sizes;  // [G] i32
  TensorView drhs;         // [G,k,n] f32 or bf16
  TensorView index = {};   // [R] i32, as in GmmArgs
};
void gmm_drhs(ThreadPool& pool, const GmmDrhsArgs& args);

// ---- Two products of the same rows, as a gated MLP has them
//
// Row r of the left operand is row index[r] of x, or row r where `index` is undefined. With AMX one pass
// packs each row once for both products, straight from where it lies; elsewhere the rows are gathered first.

// out_i[r,:] = x[index[r],:] · rhs_i[g(r)] for i = 0, 1. Where `hidden` is defined, it becomes
// silu(out_0) · out_1 · row_weights[r], bit for bit what swiglu (elementwise.h) makes of them; kernels of
// tiles make it while the sums are hot. With `hidden`, out_0 and out_1 may both be undefined: not wanted.
struct GmmPairArgs {
  TensorView x;             // [*,k]; [R,k] without `index`
  TensorView index;         // [R] i32; undefined: row r is row r of x
  TensorView rhs_0, rhs_1;  // [G,k,n]
  TensorView group_sizes;   // [G] i32
  TensorView out_0, out_1;  // [R,n]; both undefined: not wanted
  TensorView row_weights;   // [R] f32; undefined: 1
  TensorView hidden;        // [R,n]; undefined: not wanted
  // Low-rank parts as in gmm, of one `low`: both or neither.
  TensorView low = {}, low_rhs_0 = {}, low_rhs_1 = {};

  const TensorView& any_out() const { return out_0.defined() ? out_0 : hidden; }
};
void gmm_pair(ThreadPool& pool, const GmmPairArgs& args);

// dlhs[r,:] = dy_0[r,:] · rhs_0[g(r)]ᵀ + dy_1[r,:] · rhs_1[g(r)]ᵀ, plus the same of each low-rank part.
// The sum is rounded once.
struct GmmDlhsPairArgs {
  TensorView dy_0, dy_1;    // [R,n]
  TensorView rhs_0, rhs_1;  // [G,k,n]
  TensorView group_sizes;   // [G] i32
  TensorView dlhs;          // [R,k]
  std::array<GmmLow, 2> low = {};
};
void gmm_dlhs_pair(ThreadPool& pool, const GmmDlhsPairArgs& args);

// drhs_i[g] = (rows of group g of x)ᵀ · dy_i for i = 0, 1.
struct GmmDrhsPairArgs {
  TensorView x;               // [*,k]; [R,k] without `index`
  TensorView index;           // [R] i32; undefined: row r is row r of x
  TensorView dy_0, dy_1;      // [R,n]
  TensorView group_sizes;     // [G] i32
  TensorView drhs_0, drhs_1;  // [G,k,n], both f32 or both bf16
};
void gmm_drhs_pair(ThreadPool& pool, const GmmDrhsPairArgs& args);

}  // namespace switchyard

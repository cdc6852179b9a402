// GemmProblem: one matrix product as the CPU's kernels read it: addresses and strides. expanded() makes them
// of a Product (kernels/product/product.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/dtype.h"
#include "kernels/product/product.h"
#include "kernels/registry/isa.h"

namespace switchyard {

// C = op(A) · op(B) (+ bias) (+ C when accumulate); bias is [n] of `dtype` or null.
//
// Forms that the expert layers use, which the kernels of tiles alone take:
// 1. a_rows: A's stored row i is row a_rows[i] of `a`.
// 2. b_next and c_next: C_next = op(A) · op(B_next) as well, shaped like B and C. Strips of C and of C_next
//    take turns: columns [64 i, 64 i + 64) of a block are columns [32 i, 32 i + 32) of both.
//    With `hidden`, shaped like C and bf16 as it: hidden = silu(C) ⊙ C_next ⊙ row_weights[row], as swiglu
//    (elementwise.h) makes it of C and C_next as they are stored.
// 3. More terms: C = op(A) · op(B) + Σ_t op(A_t) · op(B_t), added in this order; each has its own depth.
// 4. logits: C is made of logits, or they are only summed, see there. C is bf16 or null, all else plain.
constexpr std::int64_t kGemmStrip = 32;

struct GemmTerm {
  std::int64_t k = 0;
  const void* a = nullptr;
  const std::int32_t* a_rows = nullptr;
  const void* b = nullptr;
  const void* b_next = nullptr;
  std::int64_t lda = 0, ldb = 0;
};

struct GemmProblem {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  DType dtype = DType::f32;
  const void* a = nullptr;
  bool transpose_a = false;
  std::int64_t lda = 0;
  const void* b = nullptr;
  bool transpose_b = false;
  std::int64_t ldb = 0;
  // Packed: B is [k/32, n/16] blocks of it, or [n/32, k/16] when transpose_b,
  // `ldb` of them a row. Else as A's.
  DType weight_dtype = DType::f32;
  void* c = nullptr;
  DType c_dtype = DType::f32;
  std::int64_t ldc = 0;
  bool accumulate = false;
  const void* bias = nullptr;
  const std::int32_t* a_rows = nullptr;
  const void* b_next = nullptr;
  void* c_next = nullptr;
  void* hidden = nullptr;
  const float* row_weights = nullptr;
  std::span<const GemmTerm> more = {};
  const LogitEpilogue* logits = nullptr;

  bool packed() const { return is_packed(weight_dtype); }
  bool is_plain() const {
    return a_rows == nullptr && b_next == nullptr && more.empty() && logits == nullptr;
  }
  std::int64_t terms() const { return 1 + static_cast<std::int64_t>(more.size()); }
  GemmTerm term(std::int64_t i) const {
    return i == 0 ? GemmTerm{k, a, a_rows, b, b_next, lda, ldb} : more[static_cast<std::size_t>(i - 1)];
  }
  std::int64_t depth() const {
    std::int64_t sum = k;
    for (const GemmTerm& t : more) sum += t.k;
    return sum;
  }
  // Strips of C and of C_next.
  std::int64_t strips() const { return (n + kGemmStrip - 1) / kGemmStrip * (c_next == nullptr ? 1 : 2); }
  // Columns to cut into blocks.
  std::int64_t columns() const { return c_next == nullptr ? n : strips() * kGemmStrip; }
  // A block's columns are a multiple of it, but for the last.
  std::int64_t column_unit() const {
    if (logits != nullptr) return kLogitGroup;
    if (packed() && transpose_b) return block_inputs(weight_dtype);
    return c_next == nullptr ? kGemmStrip : 2 * kGemmStrip;
  }
};

// Blocks of `block` that hold `size`.
inline std::int64_t blocks_of(std::int64_t size, std::int64_t block) {
  return (size + block - 1) / block;
}

// The block C[row_begin:row_end, column_begin:column_end].
struct GemmBlock {
  std::int64_t row_begin;
  std::int64_t row_end;
  std::int64_t column_begin;
  std::int64_t column_end;
  const void* packed_a = nullptr;  // its rows of A as GemmRowPacking packs them, or null
};

// Computes one block. An element's value must not depend on the block that it is computed in.
using GemmBlockKernel = void(const GemmProblem& problem, const GemmBlock& block);

// Packing of a block's rows of A, for blocks that have the same rows.
struct GemmRowPacking {
  // 0 where the rows cannot be packed all at a time.
  std::size_t (*bytes)(const GemmProblem& problem, const GemmBlock& rows);
  // Independent parts of the work, and one of them. `out` is aligned to 64 bytes.
  std::int64_t (*parts)(const GemmProblem& problem, const GemmBlock& rows);
  void (*pack)(const GemmProblem& problem, const GemmBlock& rows, std::int64_t part, void* out);
};

// Bytes of k · n elements of B.
inline double weight_bytes(const GemmProblem& p, double elements) {
  if (!p.packed()) return elements * static_cast<double>(size_of(p.dtype));
  return elements / static_cast<double>(block_values(p.weight_dtype)) *
         static_cast<double>(size_of(p.weight_dtype));
}

// True where the active instruction set has kernels of tiles, which take products that are not plain.
bool takes_gemm_forms(DType dtype);

// The problems of a product: one for each matrix of a batch, or for each group. Groups without rows have
// none, but the first where no group has rows: a call without rows chooses its kernel all the same. CHECKs
// that the sizes of the groups sum to the rows. An abstract device's groups are as even as they can be.
struct ExpandedProduct {
  explicit ExpandedProduct(const Product& product);
  std::vector<GemmProblem> problems;
  std::vector<std::vector<GemmTerm>> more;  // the problems' further terms
};

namespace ref {
GemmBlockKernel gemm_block;
}
namespace cpu {
GemmBlockKernel gemm_block_avx2;    // f32 and bf16
GemmBlockKernel gemm_block_avx512;  // f32 and bf16
// bf16 operands, in tiles (kernels/cpu/tile_target.h)
namespace amx_tiles {
GemmBlockKernel gemm_block;
extern const GemmRowPacking row_packing;
}  // namespace amx_tiles
namespace soft_tiles {
GemmBlockKernel gemm_block;
extern const GemmRowPacking row_packing;
}  // namespace soft_tiles
}  // namespace cpu

}  // namespace switchyard

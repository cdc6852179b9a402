// Product describes a matrix product on any device; multiply() is the one door to the table of all that can
// compute it (product_table.cc). gemm.h, grouped_matmul.h and the loss fill a Product.
#pragma once

#include <cstdint>
#include <span>

#include "core/tensor_view.h"
#include "core/thread_pool.h"
#include "kernels/product/logit_epilogue.h"

namespace switchyard {

// Makes hidden = silu(c) ⊙ c_1 ⊙ row_weights[row] of a product and its one further right operand's c_1, bit
// for bit as swiglu (kernels/pointwise/elementwise.h) does of c and c_1 as they are stored.
struct GatedEpilogue {
  TensorView row_weights;  // f32 [m]; undefined: 1
  TensorView hidden;       // as c; undefined: only c and c_1 are wanted
};

// c = Σ op(a_i) · op(b_i) + bias, plus c when `accumulate`: one sum in float32, rounded once. Views of two
// dims; or of three, of which the first counts the matrices of a batch, and a stride of 0 shares one.
// Elements of a row are neighbours. Spans and pointers live as long as the call. Whoever fills a Product
// CHECKs its views.
struct Product {
  struct Term {
    TensorView a;            // [m,k], or [k,m] when transpose_a
    TensorView b;            // [k,n], or [n,k] when transpose_b; packed: blocks of it, a not transposed
    TensorView a_rows = {};  // i32: a's stored row i is row a_rows[i]; undefined: row i
    TensorView b_next = {};  // behind the first term: the b of the further right operand's sum
  };
  // A further right operand of the first term's a: c_i = op(a) · op(b_i), in the form of the first; where
  // there is one and more terms, plus their op(a_t) · op(b_next).
  struct Right {
    TensorView b, c;
  };
  enum class Groups : std::uint8_t {
    none,   // one product, or a batch
    rows,   // the rows of a and c are in groups; each has a b [k,n] and a bias of its own
    depth,  // the stored rows of a (transposed) and of b are in groups; each has a c [m,n] of its own
  };

  const char* op = "gemm";  // the caller, for the record
  std::span<const Term> terms = {};
  std::span<const Right> right = {};
  TensorView c = {};            // undefined: only the epilogue's results are wanted
  TensorView bias = {};         // [groups,n], of groups of rows
  TensorView group_sizes = {};  // i32 [groups], where the operands are; their sum is the number of rows
  std::int64_t parts = 1;  // of groups of rows so many, one behind the other, share the b of the first term
                           // and of right operands; those of further terms are each group's own
  Groups groups = Groups::none;
  bool transpose_a = false, transpose_b = false, accumulate = false;
  const GatedEpilogue* gated = nullptr;  // with one further right operand
  const LogitEpilogue* logits = nullptr;

  bool on_gpu() const { return terms[0].a.on_gpu(); }
  // The results as they are wanted: c, or what the activation makes.
  const TensorView& result() const { return c.defined() || gated == nullptr ? c : gated->hidden; }
};

// Computes the product by the first row of the table that accepts it. A CPU asks for each group, which may
// have few rows or many; groups of one row run together.
void multiply(ThreadPool& pool, const Product& product);

}  // namespace switchyard

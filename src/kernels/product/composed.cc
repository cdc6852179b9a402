#include "kernels/product/composed.h"

#include <algorithm>
#include <vector>

#include "kernels/moe/ragged_rows.h"
#include "kernels/moe/row_adapters.h"
#include "kernels/packed/packed_weights.h"
#include "kernels/pointwise/elementwise.h"
#include "kernels/product/cuda/product.h"
#include "kernels/product/scratch.h"

namespace switchyard {
namespace {

// The first term with its rows in place, where they are looked up before the product.
class TermInPlace {
 public:
  TermInPlace(ThreadPool& pool, const Product& p) : term_(p.terms[0]) {
    if (!term_.a_rows.defined()) return;
    if (p.on_gpu() && !gpu::pays_to_gather(gpu::lowered_alone(p, {term_.b, p.c}))) return;
    rows_.emplace(term_.a, term_.a.dtype(), Shape{term_.a_rows.size(), term_.a.dim(1)});
    ragged_gather(pool, {.x = term_.a, .index = term_.a_rows, .w = {}, .out = rows_->view()});
    term_.a = rows_->view();
    term_.a_rows = {};
  }
  const Product::Term& term() const { return term_; }

 private:
  Product::Term term_;
  std::optional<Scratch> rows_;
};

void multiply_gated(ThreadPool& pool, const Product& p) {
  const GatedEpilogue& gated = *p.gated;
  const TensorView& result = p.result();
  if (!p.c.defined()) {
    const Scratch gate(result, result.dtype(), result.shape()), up(result, result.dtype(), result.shape());
    const Product::Right right{p.right[0].b, up.view()};
    Product all = p;
    all.c = gate.view();
    all.right = {&right, 1};
    return multiply(pool, all);
  }
  const TermInPlace rows(pool, p);
  std::vector<Product::Term> terms(p.terms.begin(), p.terms.end());
  terms[0] = rows.term();
  Product pair = p;
  pair.terms = terms;
  pair.gated = nullptr;
  multiply(pool, pair);
  if (gated.hidden.defined() && gated.hidden.size() > 0)
    swiglu(pool, {p.c, p.right[0].c, gated.row_weights, gated.hidden});
}

// The sum of each right operand, one after the other.
void multiply_sums(ThreadPool& pool, const Product& p) {
  Product one = p;
  one.right = {};
  multiply(pool, one);
  std::vector<Product::Term> terms(p.terms.begin(), p.terms.end());
  for (const Product::Right& right : p.right) {
    terms[0].b = right.b;
    for (std::size_t t = 1; t < terms.size(); ++t) terms[t].b = p.terms[t].b_next;
    one.terms = terms;
    one.c = right.c;
    multiply(pool, one);
  }
}

// A product whose groups share right operands, as one of fewer groups.
void multiply_joined(ThreadPool& pool, const Product& p) {
  const std::int64_t groups = p.group_sizes.size() / p.parts;
  const Scratch sizes(p.group_sizes, DType::i32, {groups});
  join_experts(pool, {p.group_sizes.reshaped({groups, p.parts}), sizes.view()});
  Product joined = p;
  joined.group_sizes = sizes.view();
  joined.parts = 1;
  multiply(pool, joined);
}

void multiply_sum(ThreadPool& pool, const Product& p) {
  if (!p.right.empty()) return multiply_sums(pool, p);
  Product some = p;
  if (p.groups == Product::Groups::none) {
    const std::size_t most = p.on_gpu() ? gpu::kMostTerms : 1;
    for (std::size_t first = 0; first < p.terms.size(); first += most) {
      some.terms = p.terms.subspan(first, std::min(most, p.terms.size() - first));
      multiply(pool, some);
      some.accumulate = true;
    }
    return;
  }
  std::optional<Scratch> sums;
  if (p.c.dtype() != DType::f32) {
    sums.emplace(p.c, DType::f32, p.c.shape());
    some.c = sums->view();
  }
  for (std::size_t i = 0; i < p.terms.size(); ++i) {
    some.terms = p.terms.subspan(i, 1);
    if (i > 0) some.parts = 1;
    multiply(pool, some);
    some.accumulate = true;
  }
  if (sums) convert(pool, some.c, p.c);
}

void multiply_each(ThreadPool& pool, const Product& p) {
  const TermInPlace rows(pool, p);
  Product some = p;
  some.terms = {&rows.term(), 1};
  if (!p.on_gpu()) return multiply(pool, some);
  const bool together = p.groups == Product::Groups::none && p.right.size() >= gpu::kMostProducts;
  const std::size_t most = together ? gpu::kMostProducts - 1 : 0;  // behind the first
  std::span<const Product::Right> left = p.right;
  Product::Term term = rows.term();
  for (;;) {
    const std::size_t here = std::min(most, left.size());
    some.terms = {&term, 1};
    some.right = left.first(here);
    multiply(pool, some);
    left = left.subspan(here);
    if (left.empty()) return;
    term.b = left.front().b;
    some.c = left.front().c;
    some.bias = {};
    left = left.subspan(1);
  }
}

}  // namespace

void composed_product(ThreadPool& pool, const Product& p) {
  if (p.gated != nullptr) return multiply_gated(pool, p);
  if (p.terms.size() > 1) return multiply_sum(pool, p);
  p.parts > 1 ? multiply_joined(pool, p) : multiply_each(pool, p);
}

void unpacked_product(ThreadPool& pool, const Product& p) {
  const TensorView& packed = p.terms[0].b;
  const DType dtype = p.terms[0].a.dtype();
  const Scratch dense(packed, dtype, unpacked_shape(packed.dtype(), packed.shape()));
  unpack_weights(pool, {.packed = packed, .dense = dense.view()});
  Product::Term term = p.terms[0];
  term.b = dense.view();
  Product with_dense = p;
  with_dense.op = "gemm of unpacked weights";
  with_dense.terms = {&term, 1};
  multiply(pool, with_dense);
}

}  // namespace switchyard

// Blocks of logits and of their gradients by gemm (internal to cross_entropy's implementations).
#pragma once

#include <algorithm>
#include <cstring>

#include "core/tensor.h"
#include "kernels/loss/cross_entropy_problem.h"
#include "kernels/pointwise/elementwise.h"
#include "kernels/product/product.h"

namespace switchyard::cross_entropy_blocks {

// The tiled path: gemm makes a block of logits, a pass over its rows makes sums or gradients of them.
// 16 MiB of logits at a time: large enough for gemm to be at its best, and for dhidden and dweight to be
// added to seldom; small enough for the second pass to find them in the shared cache.
constexpr std::int64_t kRowBlock = 2048;
constexpr std::int64_t kVocabBlock = 2048;
constexpr std::int64_t kRowGrain = 16;

struct Block {
  std::int64_t row, rows, column, columns;
};

inline const std::byte* at(const void* data, DType dtype, std::int64_t element) {
  return static_cast<const std::byte*>(data) + element * static_cast<std::int64_t>(size_of(dtype));
}

inline const std::byte* weight_at(const CrossEntropyProblem& a, std::int64_t column) {
  return at(a.weight, a.dtype, a.weight_vocab_major ? column * a.emb : column);
}

inline std::int64_t weight_stride(const CrossEntropyProblem& a) {
  return a.weight_vocab_major ? a.emb : a.vocab;
}

// A block's logits; where they go is the caller's to say.
inline GemmProblem logits_problem(const CrossEntropyProblem& a, const Block& b) {
  return {.m = b.rows,
          .n = b.columns,
          .k = a.emb,
          .dtype = a.dtype,
          .a = at(a.hidden, a.dtype, b.row * a.emb),
          .lda = a.emb,
          .b = weight_at(a, b.column),
          .transpose_b = a.weight_vocab_major,
          .ldb = weight_stride(a),
          .ldc = b.columns};
}

inline void multiply_logits(ThreadPool& pool, const CrossEntropyProblem& a, const Block& b, float* logits) {
  GemmProblem problem = logits_problem(a, b);
  problem.c = logits;
  run_products(pool, "gemm", {&problem, 1});
}

// dhidden [rows, emb] (+)= gradient [rows, columns] . weight^T
inline void multiply_dhidden(ThreadPool& pool, const CrossEntropyProblem& a, const Block& b,
                             const void* gradient, float* dhidden) {
  const GemmProblem problem{.m = b.rows,
                            .n = a.emb,
                            .k = b.columns,
                            .dtype = a.dtype,
                            .a = gradient,
                            .lda = b.columns,
                            .b = weight_at(a, b.column),
                            .transpose_b = !a.weight_vocab_major,
                            .ldb = weight_stride(a),
                            .c = dhidden + b.row * a.emb,
                            .ldc = a.emb,
                            .accumulate = b.column > 0};
  run_products(pool, "gemm", {&problem, 1});
}

// dweight while rows are added: where it belongs, or float32 beside it where it is to be rounded and not all
// rows are of one block. A block of columns waits there for its rows; with `all_columns` all of them do,
// since rows come first.
class WeightGradient {
 public:
  static std::size_t sum_bytes(const CrossEntropyProblem& a, std::int64_t vocab_block, bool all_columns) {
    if (a.dtype == DType::f32 || (!all_columns && a.rows <= kRowBlock)) return 0;
    const std::int64_t columns = all_columns ? a.vocab : std::min(vocab_block, a.vocab);
    return static_cast<std::size_t>(columns * a.emb) * sizeof(float);
  }
  WeightGradient(const CrossEntropyProblem& a, std::int64_t vocab_block, bool all_columns, void* dweight)
      : args_(a),
        out_(static_cast<std::byte*>(dweight)),
        all_columns_(all_columns),
        sum_(sum_bytes(a, vocab_block, all_columns)) {
    if (a.rows == 0) std::memset(dweight, 0, static_cast<std::size_t>(a.vocab * a.emb) * size_of(a.dtype));
  }

  // (+)= hidden^T . gradient, or its transpose, by the layout of the weight.
  void add(ThreadPool& pool, const Block& b, const void* gradient) {
    const CrossEntropyProblem& a = args_;
    const bool apart = sum_.bytes() > 0;
    GemmProblem product;
    product.k = b.rows;
    product.dtype = a.dtype;
    product.transpose_a = true;
    product.c = apart ? sum_of(b) : at_block(b);
    product.c_dtype = apart ? DType::f32 : a.dtype;
    product.accumulate = b.row > 0;
    const void* const hidden = at(a.hidden, a.dtype, b.row * a.emb);
    if (a.weight_vocab_major) {
      product.m = product.lda = b.columns;
      product.n = product.ldb = product.ldc = a.emb;
      product.a = gradient;
      product.b = hidden;
    } else {
      product.m = product.lda = a.emb;
      product.n = product.ldb = b.columns;
      product.ldc = apart ? b.columns : a.vocab;
      product.a = hidden;
      product.b = gradient;
    }
    run_products(pool, "gemm", {&product, 1});
    if (apart && b.row + b.rows == a.rows) round(pool, b);
  }

 private:
  std::byte* at_block(const Block& b) const {
    const std::int64_t element = args_.weight_vocab_major ? b.column * args_.emb : b.column;
    return out_ + static_cast<std::size_t>(element) * size_of(args_.dtype);
  }
  std::byte* sum_of(const Block& b) {
    return sum_.data() + static_cast<std::size_t>(all_columns_ ? b.column * args_.emb : 0) * sizeof(float);
  }
  void round(ThreadPool& pool, const Block& b) {
    const bool major = args_.weight_vocab_major;
    const Shape shape{major ? b.columns : args_.emb, major ? args_.emb : b.columns};
    convert(pool, TensorView::of_host(DType::f32, sum_of(b), shape),
            TensorView::of_host(args_.dtype, at_block(b), shape, {weight_stride(args_), 1}));
  }

  const CrossEntropyProblem& args_;
  std::byte* const out_;
  const bool all_columns_;
  Buffer sum_;
};

// Vocabulary outside, rows inside: a block of the weight and of its gradient is used for all rows while it is
// hot.
template <typename Body>
void for_each_block(const CrossEntropyProblem& a, std::int64_t vocab_block, const Body& body) {
  for (std::int64_t v = 0; v < a.vocab; v += vocab_block) {
    for (std::int64_t r = 0; r < a.rows; r += kRowBlock) {
      body(Block{r, std::min(kRowBlock, a.rows - r), v, std::min(vocab_block, a.vocab - v)});
    }
  }
}

// Local column of row r's target within the block, or -1.
inline std::int64_t target_in(const CrossEntropyProblem& a, const Block& b, std::int64_t r) {
  const std::int64_t column = a.targets[r] - a.vocab_begin - b.column;
  return column >= 0 && column < b.columns ? column : -1;
}

}  // namespace switchyard::cross_entropy_blocks

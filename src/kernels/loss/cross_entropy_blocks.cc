// Projection and cross-entropy in blocks of logits that gemm makes (logit_blocks in cross_entropy_problem.h).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/tensor.h"
#include "kernels/loss/cross_entropy_problem.h"
#include "kernels/pointwise/elementwise.h"
#include "kernels/product/product.h"

#if defined(__x86_64__)
namespace switchyard::logit_blocks {
namespace {

// 16 MiB of logits at a time: large enough for gemm to be at its best, and for dhidden and dweight to be
// added to seldom; small enough for the second pass to find them in the shared cache.
constexpr std::int64_t kRowBlock = 2048;
constexpr std::int64_t kVocabBlock = 2048;
constexpr std::int64_t kRowGrain = 16;

struct Block {
  std::int64_t row, rows, column, columns;
};

const std::byte* at(const void* data, DType dtype, std::int64_t element) {
  return static_cast<const std::byte*>(data) + element * static_cast<std::int64_t>(size_of(dtype));
}

// A matrix of the host's, with stored rows that are `leading` elements apart; by default without gaps.
TensorView matrix(DType dtype, const void* data, std::int64_t rows, std::int64_t columns,
                  std::int64_t leading = 0) {
  return TensorView::of_host(dtype, data, {rows, columns}, {leading == 0 ? columns : leading, 1});
}

// The block's columns of a weight, or of its gradient: [emb, columns], or [columns, emb] where the
// vocabulary is the first dim.
TensorView weight_columns(const CrossEntropyProblem& a, const void* weight, const Block& b) {
  return a.weight_vocab_major ? matrix(a.dtype, at(weight, a.dtype, b.column * a.emb), b.columns, a.emb)
                              : matrix(a.dtype, at(weight, a.dtype, b.column), a.emb, b.columns, a.vocab);
}

TensorView hidden_rows(const CrossEntropyProblem& a, const Block& b) {
  return matrix(a.dtype, at(a.hidden, a.dtype, b.row * a.emb), b.rows, a.emb);
}

// Makes a block's logits: c, or what an epilogue makes of them.
void multiply_logits(ThreadPool& pool, const CrossEntropyProblem& a, const Block& b, const TensorView& c,
                     const LogitEpilogue* epilogue = nullptr) {
  const Product::Term term{hidden_rows(a, b), weight_columns(a, a.weight, b)};
  multiply(pool, {.op = epilogue == nullptr ? "gemm" : "logits",
                  .terms = {&term, 1},
                  .c = c,
                  .transpose_b = a.weight_vocab_major,
                  .logits = epilogue});
}

void multiply_logits(ThreadPool& pool, const CrossEntropyProblem& a, const Block& b, float* logits) {
  multiply_logits(pool, a, b, matrix(DType::f32, logits, b.rows, b.columns));
}

// dhidden [rows, emb] (+)= gradient [rows, columns] . weight^T
void multiply_dhidden(ThreadPool& pool, const CrossEntropyProblem& a, const Block& b, const void* gradient) {
  const Product::Term term{matrix(a.dtype, gradient, b.rows, b.columns), weight_columns(a, a.weight, b)};
  multiply(pool, {.terms = {&term, 1},
                  .c = matrix(DType::f32, a.dhidden + b.row * a.emb, b.rows, a.emb),
                  .transpose_b = !a.weight_vocab_major,
                  .accumulate = b.column > 0});
}

// Adds rows up to dweight: where it belongs, or in float32 beside it where it is to be rounded and not all
// rows are of one block. Nothing where dweight is not wanted. A block of columns waits there for its rows;
// with `all_columns` all of them do, since rows come first.
class WeightGradient {
 public:
  static std::size_t sum_bytes(const CrossEntropyProblem& a, std::int64_t vocab_block, bool all_columns) {
    if (!a.weight_trains || a.dtype == DType::f32 || (!all_columns && a.rows <= kRowBlock)) return 0;
    const std::int64_t columns = all_columns ? a.vocab : std::min(vocab_block, a.vocab);
    return static_cast<std::size_t>(columns * a.emb) * sizeof(float);
  }
  WeightGradient(const CrossEntropyProblem& a, std::int64_t vocab_block, bool all_columns)
      : args_(a), all_columns_(all_columns), sum_(sum_bytes(a, vocab_block, all_columns)) {
    if (a.rows == 0 && a.weight_trains)
      std::memset(a.dweight, 0, static_cast<std::size_t>(a.vocab * a.emb) * size_of(a.dtype));
  }

  // (+)= hidden^T . gradient, or its transpose, by the layout of the weight.
  void add(ThreadPool& pool, const Block& b, const void* gradient) {
    const CrossEntropyProblem& a = args_;
    if (!a.weight_trains) return;
    const bool apart = sum_.bytes() > 0;
    const TensorView block = weight_columns(a, a.dweight, b), hidden = hidden_rows(a, b),
                     of_logits = matrix(a.dtype, gradient, b.rows, b.columns);
    const Product::Term term =
        a.weight_vocab_major ? Product::Term{of_logits, hidden} : Product::Term{hidden, of_logits};
    multiply(pool, {.terms = {&term, 1},
                    .c = apart ? matrix(DType::f32, sum_of(b), block.dim(0), block.dim(1)) : block,
                    .transpose_a = true,
                    .accumulate = b.row > 0});
    if (apart && b.row + b.rows == a.rows) round(pool, b);
  }

 private:
  std::byte* sum_of(const Block& b) {
    return sum_.data() + static_cast<std::size_t>(all_columns_ ? b.column * args_.emb : 0) * sizeof(float);
  }
  void round(ThreadPool& pool, const Block& b) {
    const TensorView block = weight_columns(args_, args_.dweight, b);
    convert(pool, matrix(DType::f32, sum_of(b), block.dim(0), block.dim(1)), block);
  }

  const CrossEntropyProblem& args_;
  const bool all_columns_;
  Buffer sum_;
};

// Calls body with the blocks of the rows [begin, end). Vocabulary outside, rows inside: a block of the weight
// and of its gradient is used for all rows while it is hot.
template <typename Body>
void for_each_block(const CrossEntropyProblem& a, std::int64_t vocab_block, std::int64_t begin,
                    std::int64_t end, const Body& body) {
  for (std::int64_t v = 0; v < a.vocab; v += vocab_block) {
    for (std::int64_t r = begin; r < end; r += kRowBlock)
      body(Block{r, std::min(kRowBlock, end - r), v, std::min(vocab_block, a.vocab - v)});
  }
}

// Local column of row r's target within the block, or -1.
std::int64_t target_in(const CrossEntropyProblem& a, const Block& b, std::int64_t r) {
  const std::int64_t column = a.targets[r] - a.vocab_begin - b.column;
  return column >= 0 && column < b.columns ? column : -1;
}

void clear_target_logits(const CrossEntropyProblem& a) {
  std::fill(a.target_logit, a.target_logit + a.rows, 0.0f);
}

// dhidden is 0 where there are no columns, which add nothing.
void clear_dhidden(const CrossEntropyProblem& a) {
  std::fill(a.dhidden, a.dhidden + (a.vocab > 0 ? 0 : a.rows * a.emb), 0.0f);
}

// The sums of all rows while blocks of logits are added.
template <RowSumUpdate* update>
class RowSums {
 public:
  explicit RowSums(const CrossEntropyProblem& a)
      : args_(a), sums_(static_cast<std::size_t>(a.rows), {-std::numeric_limits<float>::infinity(), 0.0f}) {
    clear_target_logits(a);
  }
  // Makes the block's logits, and adds them.
  void add(ThreadPool& pool, const Block& b, float* logits) {
    const CrossEntropyProblem& a = args_;
    multiply_logits(pool, a, b, logits);
    pool.for_range(b.rows, kRowGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t r = b.row + i, target = target_in(a, b, r);
        update(logits + i * b.columns, b.columns, a.logit_soft_cap, sums_[static_cast<std::size_t>(r)]);
        if (target >= 0) a.target_logit[r] = logits[i * b.columns + target];
      }
    });
  }
  void write(std::int64_t begin, std::int64_t end) const {
    for (std::int64_t r = begin; r < end; ++r) {
      const RowSum& row = sums_[static_cast<std::size_t>(r)];
      args_.lse[r] = row.maximum + std::log(row.sum);
    }
  }

 private:
  const CrossEntropyProblem& args_;
  std::vector<RowSum> sums_;
};

// Makes gradients of a block's logits, and adds what they give to dhidden and dweight. `rounded`: where bf16
// gradients go; null: float32 ones take the logits' place.
template <RowGradientRun* gradient>
void add_gradients(ThreadPool& pool, const CrossEntropyProblem& a, const Block& b, float* logits,
                   bfloat16* rounded, WeightGradient& of_weight) {
  pool.for_range(b.rows, kRowGrain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t r = b.row + i;
      gradient(logits + i * b.columns, b.columns,
               {a.logit_soft_cap, a.lse[r], a.softmax[r], a.target[r], target_in(a, b, r)},
               rounded ? rounded + i * b.columns : nullptr);
    }
  });
  const void* const made = rounded ? static_cast<const void*>(rounded) : logits;
  multiply_dhidden(pool, a, b, made);
  of_weight.add(pool, b, made);
}

float* floats(Buffer& buffer) {
  return reinterpret_cast<float*>(buffer.data());
}

// The bf16 gradients in a buffer; null of an empty one.
bfloat16* rounded_in(Buffer& buffer) {
  return buffer.bytes() > 0 ? reinterpret_cast<bfloat16*>(buffer.data()) : nullptr;
}

std::size_t block_elements(const CrossEntropyProblem& a, std::int64_t rows, std::int64_t vocab_block) {
  return static_cast<std::size_t>(std::min(kRowBlock, rows) * std::min(vocab_block, a.vocab));
}

std::size_t rounded_bytes(const CrossEntropyProblem& a, std::int64_t rows) {
  return a.dtype == DType::f32 ? 0 : block_elements(a, rows, kVocabBlock) * sizeof(bfloat16);
}

}  // namespace

// ---- A second pass over each block

std::size_t tiled_bytes(const CrossEntropyProblem& a) {
  return block_elements(a, a.rows, kVocabBlock) * sizeof(float);
}

std::size_t tiled_backward_bytes(const CrossEntropyProblem& a) {
  return tiled_bytes(a) + rounded_bytes(a, a.rows) + WeightGradient::sum_bytes(a, kVocabBlock, false);
}

template <RowSumUpdate* update>
void tiled(ThreadPool& pool, const CrossEntropyProblem& a) {
  RowSums<update> sums(a);
  Buffer logits(tiled_bytes(a));
  for_each_block(a, kVocabBlock, 0, a.rows, [&](const Block& b) { sums.add(pool, b, floats(logits)); });
  sums.write(0, a.rows);
}

template <RowGradientRun* gradient>
void tiled_backward(ThreadPool& pool, const CrossEntropyProblem& a) {
  clear_dhidden(a);
  WeightGradient of_weight(a, kVocabBlock, false);
  Buffer logits(tiled_bytes(a)), rounded(rounded_bytes(a, a.rows));
  for_each_block(a, kVocabBlock, 0, a.rows, [&](const Block& b) {
    multiply_logits(pool, a, b, floats(logits));
    add_gradients<gradient>(pool, a, b, floats(logits), rounded_in(rounded), of_weight);
  });
}

// ---- The kernel of products sums logits, or makes gradients of them, while they are hot

namespace {

// Rows whose sums are in memory at a time: 8 bytes for each group of columns.
constexpr std::int64_t kSummedRows = 8192;
// A block's gradients take as much memory as the logits above.
constexpr std::int64_t kGradientBlock = 2 * kVocabBlock;

std::int64_t logit_groups(const CrossEntropyProblem& a) {
  return (a.vocab + kLogitGroup - 1) / kLogitGroup;
}

std::size_t gradient_bytes(const CrossEntropyProblem& a) {
  return block_elements(a, a.rows, kGradientBlock) * sizeof(bfloat16);
}

}  // namespace

const char* hot_refuses(const CrossEntropyProblem& a) {
  if (a.dtype != DType::bf16) return "takes bfloat16 only";
  return a.logit_soft_cap > 0 ? "has no soft cap" : nullptr;
}

std::size_t hot_bytes(const CrossEntropyProblem& a) {
  return static_cast<std::size_t>(std::min(kSummedRows, a.rows) * logit_groups(a)) * sizeof(RowSum);
}

std::size_t hot_backward_bytes(const CrossEntropyProblem& a) {
  return gradient_bytes(a) + WeightGradient::sum_bytes(a, kGradientBlock, false);
}

void hot(ThreadPool& pool, const CrossEntropyProblem& a) {
  const std::int64_t groups = logit_groups(a);
  Buffer buffer(hot_bytes(a));
  auto* const sums = reinterpret_cast<RowSum*>(buffer.data());
  clear_target_logits(a);
  for (std::int64_t row = 0; row < a.rows; row += kSummedRows) {
    const Block block{row, std::min(kSummedRows, a.rows - row), 0, a.vocab};
    const LogitEpilogue logits{.targets = a.targets + row,
                               .first_id = a.vocab_begin,
                               .sums = sums,
                               .target_logit = a.target_logit + row};
    multiply_logits(pool, a, block, {}, &logits);
    pool.for_range(block.rows, 512, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        const std::span<const RowSum> of_row(sums + r * groups, static_cast<std::size_t>(groups));
        float maximum = -std::numeric_limits<float>::infinity(), sum = 0;
        for (const RowSum& group : of_row) maximum = std::max(maximum, group.maximum);
        for (const RowSum& group : of_row) sum += group.sum * std::exp(group.maximum - maximum);
        a.lse[row + r] = maximum + std::log(sum);
      }
    });
  }
}

void hot_backward(ThreadPool& pool, const CrossEntropyProblem& a) {
  clear_dhidden(a);
  WeightGradient of_weight(a, kGradientBlock, false);
  Buffer gradient(gradient_bytes(a));
  for_each_block(a, kGradientBlock, 0, a.rows, [&](const Block& b) {
    const LogitEpilogue logits{.targets = a.targets + b.row,
                               .first_id = a.vocab_begin + b.column,
                               .lse = a.lse + b.row,
                               .softmax_coefficient = a.softmax + b.row,
                               .target_coefficient = a.target + b.row};
    multiply_logits(pool, a, b, matrix(DType::bf16, gradient.data(), b.rows, b.columns), &logits);
    multiply_dhidden(pool, a, b, gradient.data());
    of_weight.add(pool, b, gradient.data());
  });
}

// ---- Logits wait for the sums of their rows

namespace {

// Rows whose logits wait.
std::int64_t kept_rows(const CrossEntropyProblem& a) {
  return std::min(a.rows, a.rows_at_once);
}

std::size_t kept_logit_bytes(const CrossEntropyProblem& a) {
  return static_cast<std::size_t>(kept_rows(a) * a.vocab) * sizeof(float);
}

}  // namespace

const char* kept_gradients_refuse(const CrossEntropyProblem& a) {
  return a.logit_soft_cap > 0 ? "has no soft cap" : nullptr;
}

std::size_t kept_gradients_bytes(const CrossEntropyProblem& a) {
  return kept_logit_bytes(a) + rounded_bytes(a, kept_rows(a)) +
         WeightGradient::sum_bytes(a, kVocabBlock, kept_rows(a) < a.rows);
}

template <RowSumUpdate* update, RowGradientRun* gradient>
void kept_gradients(ThreadPool& pool, const CrossEntropyProblem& a) {
  const std::int64_t rows = kept_rows(a);
  Buffer logits(kept_logit_bytes(a)), rounded(rounded_bytes(a, rows));
  RowSums<update> sums(a);
  clear_dhidden(a);
  WeightGradient of_weight(a, kVocabBlock, rows < a.rows);
  for (std::int64_t begin = 0; begin < a.rows; begin += rows) {
    const std::int64_t end = std::min(a.rows, begin + rows);
    const auto logits_of = [&](const Block& b) {
      return floats(logits) + b.column * (end - begin) + (b.row - begin) * b.columns;
    };
    for_each_block(a, kVocabBlock, begin, end, [&](const Block& b) { sums.add(pool, b, logits_of(b)); });
    sums.write(begin, end);
    (*a.summed)(begin, end);
    for_each_block(a, kVocabBlock, begin, end, [&](const Block& b) {
      add_gradients<gradient>(pool, a, b, logits_of(b), rounded_in(rounded), of_weight);
    });
  }
}

#define SWITCHYARD_INSTANTIATE(isa)                                                               \
  template void tiled<cpu::row_sum_update_##isa>(ThreadPool&, const CrossEntropyProblem&);        \
  template void tiled_backward<cpu::row_gradient_##isa>(ThreadPool&, const CrossEntropyProblem&); \
  template void kept_gradients<cpu::row_sum_update_##isa, cpu::row_gradient_##isa>(               \
      ThreadPool&, const CrossEntropyProblem&);
SWITCHYARD_INSTANTIATE(avx2)
SWITCHYARD_INSTANTIATE(avx512)
#undef SWITCHYARD_INSTANTIATE

}  // namespace switchyard::logit_blocks
#endif  // x86-64

// The loss with its gradients where float32 kernels make them (kept_logits in cross_entropy_problem.h):
// logits are made once, in blocks by gemm, and wait for the sums of their rows.
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/loss/cross_entropy_blocks.h"
#include "kernels/loss/cross_entropy_problem.h"

#if defined(__x86_64__)
namespace switchyard::kept_logits {
namespace {

using namespace cross_entropy_blocks;

// Rows whose logits wait, and the buffers of all.
struct Sizes {
  explicit Sizes(const CrossEntropyProblem& a)
      : rows(std::min(a.rows, loss_rows_at_once(a))),
        logit_bytes(static_cast<std::size_t>(rows * a.vocab) * sizeof(float)),
        rounded_bytes(a.dtype == DType::f32 ? 0
                                            : static_cast<std::size_t>(std::min(kRowBlock, rows) *
                                                                       std::min(kVocabBlock, a.vocab)) *
                                                  sizeof(bfloat16)) {}
  bool rows_first(const CrossEntropyProblem& a) const { return rows < a.rows; }

  std::int64_t rows;
  std::size_t logit_bytes;
  std::size_t rounded_bytes;
};

// The blocks of the rows [begin, end), vocabulary outside.
template <typename Body>
void for_each_block_of_rows(const CrossEntropyProblem& a, std::int64_t begin, std::int64_t end,
                            const Body& body) {
  for (std::int64_t v = 0; v < a.vocab; v += kVocabBlock) {
    for (std::int64_t r = begin; r < end; r += kRowBlock) {
      body(Block{r, std::min(kRowBlock, end - r), v, std::min(kVocabBlock, a.vocab - v)});
    }
  }
}

template <RowSumUpdate* update, RowGradientRun* gradient>
void gradients(ThreadPool& pool, const CrossEntropyProblem& a, const LossGradientsProblem& out) {
  const Sizes sizes(a);
  Buffer logits(sizes.logit_bytes), rounded_buffer(sizes.rounded_bytes);
  auto* const rounded =
      sizes.rounded_bytes > 0 ? reinterpret_cast<bfloat16*>(rounded_buffer.data()) : nullptr;
  std::vector<RowSum> sums(static_cast<std::size_t>(a.rows), {-std::numeric_limits<float>::infinity(), 0.0f});
  std::fill(out.target_logit, out.target_logit + a.rows, 0.0f);
  std::fill(out.dhidden, out.dhidden + (a.vocab > 0 ? 0 : a.rows * a.emb), 0.0f);
  WeightGradient of_weight(a, kVocabBlock, sizes.rows_first(a), out.dweight);
  for (std::int64_t begin = 0; begin < a.rows; begin += sizes.rows) {
    const std::int64_t end = std::min(a.rows, begin + sizes.rows);
    const auto logits_of = [&](const Block& b) {
      return reinterpret_cast<float*>(logits.data()) + b.column * (end - begin) + (b.row - begin) * b.columns;
    };
    for_each_block_of_rows(a, begin, end, [&](const Block& b) {
      float* const x = logits_of(b);
      multiply_logits(pool, a, b, x);
      pool.for_range(b.rows, kRowGrain, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t i = first; i < last; ++i) {
          const std::int64_t r = b.row + i, target = target_in(a, b, r);
          update(x + i * b.columns, b.columns, 0, sums[static_cast<std::size_t>(r)]);
          if (target >= 0) out.target_logit[r] = x[i * b.columns + target];
        }
      });
    });
    for (std::int64_t r = begin; r < end; ++r) {
      const RowSum& row = sums[static_cast<std::size_t>(r)];
      out.lse[r] = row.maximum + std::log(row.sum);
    }
    out.summed(begin, end);
    for_each_block_of_rows(a, begin, end, [&](const Block& b) {
      float* const x = logits_of(b);
      pool.for_range(b.rows, kRowGrain, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t i = first; i < last; ++i) {
          const std::int64_t r = b.row + i;
          const RowGradient row{0, out.lse[r], out.softmax_coefficient[r], out.target_coefficient[r],
                                target_in(a, b, r)};
          gradient(x + i * b.columns, b.columns, row, rounded ? rounded + i * b.columns : nullptr);
        }
      });
      const void* const made = rounded ? static_cast<const void*>(rounded) : x;
      multiply_dhidden(pool, a, b, made, out.dhidden);
      of_weight.add(pool, b, made);
    });
  }
}

}  // namespace

void gradients_avx512(ThreadPool& pool, const CrossEntropyProblem& a, const LossGradientsProblem& out) {
  gradients<cpu::row_sum_update_avx512, cpu::row_gradient_avx512>(pool, a, out);
}

void gradients_avx2(ThreadPool& pool, const CrossEntropyProblem& a, const LossGradientsProblem& out) {
  gradients<cpu::row_sum_update_avx2, cpu::row_gradient_avx2>(pool, a, out);
}

std::size_t workspace(const CrossEntropyProblem& a) {
  const Sizes sizes(a);
  return sizes.logit_bytes + sizes.rounded_bytes +
         WeightGradient::sum_bytes(a, kVocabBlock, sizes.rows_first(a));
}

const char* refuses(const CrossEntropyProblem& a) {
  return a.logit_soft_cap > 0 ? "has no soft cap" : nullptr;
}

}  // namespace switchyard::kept_logits
#endif  // x86-64

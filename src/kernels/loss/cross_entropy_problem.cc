// Projection and cross-entropy of addresses: blocks of logits by gemm, and the lists of implementations.
#include "kernels/loss/cross_entropy_problem.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/error.h"
#include "core/tensor.h"
#include "kernels/loss/cross_entropy_blocks.h"
#include "kernels/loss/reference/cross_entropy_reference.h"
#include "kernels/registry/dispatch.h"

namespace switchyard {
namespace {

using namespace cross_entropy_blocks;

Buffer logits_buffer(const CrossEntropyProblem& a) {
  return Buffer(static_cast<std::size_t>(std::min(kRowBlock, a.rows) * std::min(kVocabBlock, a.vocab)) *
                sizeof(float));
}

template <RowSumUpdate* update>
void tiled_forward(ThreadPool& pool, const CrossEntropyProblem& a, float* lse, float* target_logit) {
  std::vector<RowSum> sums(static_cast<std::size_t>(a.rows), {-std::numeric_limits<float>::infinity(), 0.0f});
  std::fill(target_logit, target_logit + a.rows, 0.0f);
  Buffer buffer = logits_buffer(a);
  auto* logits = reinterpret_cast<float*>(buffer.data());
  for_each_block(a, kVocabBlock, [&](const Block& b) {
    multiply_logits(pool, a, b, logits);
    pool.for_range(b.rows, kRowGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t r = b.row + i;
        update(logits + i * b.columns, b.columns, a.logit_soft_cap, sums[static_cast<std::size_t>(r)]);
        const std::int64_t target = target_in(a, b, r);
        if (target >= 0) target_logit[r] = logits[i * b.columns + target];
      }
    });
  });
  for (std::int64_t r = 0; r < a.rows; ++r) {
    const RowSum& row = sums[static_cast<std::size_t>(r)];
    lse[r] = row.maximum + std::log(row.sum);
  }
}

template <RowGradientRun* run>
void tiled_backward(ThreadPool& pool, const CrossEntropyProblem& a, const float* lse,
                    const float* softmax_coefficient, const float* target_coefficient, float* dhidden,
                    void* dweight) {
  std::fill(dhidden, dhidden + (a.vocab > 0 ? 0 : a.rows * a.emb), 0.0f);
  WeightGradient of_weight(a, kVocabBlock, false, dweight);
  Buffer buffer = logits_buffer(a);
  auto* logits = reinterpret_cast<float*>(buffer.data());
  Buffer rounded_buffer(a.dtype == DType::bf16 ? buffer.bytes() / 2 : 0);
  auto* rounded = a.dtype == DType::bf16 ? reinterpret_cast<bfloat16*>(rounded_buffer.data()) : nullptr;
  const void* gradient = rounded ? static_cast<const void*>(rounded) : logits;
  for_each_block(a, kVocabBlock, [&](const Block& b) {
    multiply_logits(pool, a, b, logits);
    pool.for_range(b.rows, kRowGrain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t r = b.row + i;
        run(logits + i * b.columns, b.columns,
            {a.logit_soft_cap, lse[r], softmax_coefficient[r], target_coefficient[r], target_in(a, b, r)},
            rounded ? rounded + i * b.columns : nullptr);
      }
    });
    multiply_dhidden(pool, a, b, gradient, dhidden);
    of_weight.add(pool, b, gradient);
  });
}

// Below, the kernel of products sums logits, or makes gradients of them, while they are hot.

// Rows whose sums are in memory at a time: 8 bytes for each group of columns.
constexpr std::int64_t kSummedRows = 8192;

std::int64_t logit_groups(const CrossEntropyProblem& a) {
  return (a.vocab + kLogitGroup - 1) / kLogitGroup;
}

std::size_t row_sum_bytes(const CrossEntropyProblem& a) {
  return static_cast<std::size_t>(std::min(kSummedRows, a.rows) * logit_groups(a)) * sizeof(RowSum);
}

void hot_forward(ThreadPool& pool, const CrossEntropyProblem& a, float* lse, float* target_logit) {
  const std::int64_t groups = logit_groups(a);
  Buffer buffer(row_sum_bytes(a));
  auto* const sums = reinterpret_cast<RowSum*>(buffer.data());
  std::fill(target_logit, target_logit + a.rows, 0.0f);
  for (std::int64_t row = 0; row < a.rows; row += kSummedRows) {
    const Block block{row, std::min(kSummedRows, a.rows - row), 0, a.vocab};
    const LogitProblem logits{.targets = a.targets + row,
                              .first_id = a.vocab_begin,
                              .sums = sums,
                              .target_logit = target_logit + row};
    GemmProblem problem = logits_problem(a, block);
    problem.logits = &logits;
    run_products(pool, "logits", {&problem, 1});
    pool.for_range(block.rows, 512, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        const std::span<const RowSum> of_row(sums + r * groups, static_cast<std::size_t>(groups));
        float maximum = -std::numeric_limits<float>::infinity(), sum = 0;
        for (const RowSum& group : of_row) maximum = std::max(maximum, group.maximum);
        for (const RowSum& group : of_row) sum += group.sum * std::exp(group.maximum - maximum);
        lse[row + r] = maximum + std::log(sum);
      }
    });
  }
}

// A block's gradients take as much memory as the logits above.
constexpr std::int64_t kGradientBlock = 2 * kVocabBlock;

std::size_t gradient_bytes(const CrossEntropyProblem& a) {
  return static_cast<std::size_t>(std::min(kRowBlock, a.rows) * std::min(kGradientBlock, a.vocab)) *
         sizeof(bfloat16);
}

void hot_backward(ThreadPool& pool, const CrossEntropyProblem& a, const float* lse,
                  const float* softmax_coefficient, const float* target_coefficient, float* dhidden,
                  void* dweight) {
  std::fill(dhidden, dhidden + (a.vocab > 0 ? 0 : a.rows * a.emb), 0.0f);
  WeightGradient of_weight(a, kGradientBlock, false, dweight);
  Buffer gradient(gradient_bytes(a));
  for_each_block(a, kGradientBlock, [&](const Block& b) {
    const LogitProblem logits{.targets = a.targets + b.row,
                              .first_id = a.vocab_begin + b.column,
                              .lse = lse + b.row,
                              .softmax_coefficient = softmax_coefficient + b.row,
                              .target_coefficient = target_coefficient + b.row};
    GemmProblem problem = logits_problem(a, b);
    problem.logits = &logits;
    problem.c = gradient.data();
    problem.c_dtype = DType::bf16;
    run_products(pool, "logits", {&problem, 1});
    multiply_dhidden(pool, a, b, gradient.data(), dhidden);
    of_weight.add(pool, b, gradient.data());
  });
}

const char* hot_refuses(const CrossEntropyProblem& args) {
  if (args.dtype != DType::bf16) return "takes bfloat16 only";
  if (args.logit_soft_cap > 0) return "has no soft cap";
  return nullptr;
}

void reference_forward(ThreadPool&, const CrossEntropyProblem& a, float* lse, float* target_logit) {
  a.dtype == DType::f32 ? reference::linear_cross_entropy<float>(a, lse, target_logit)
                        : reference::linear_cross_entropy<bfloat16>(a, lse, target_logit);
}

void reference_backward(ThreadPool&, const CrossEntropyProblem& a, const float* lse,
                        const float* softmax_coefficient, const float* target_coefficient, float* dhidden,
                        void* dweight) {
  const auto run = [&]<typename T>(T* out) {
    reference::linear_cross_entropy_backward<T>(a, lse, softmax_coefficient, target_coefficient, dhidden,
                                                out);
  };
  a.dtype == DType::f32 ? run(static_cast<float*>(dweight)) : run(static_cast<bfloat16*>(dweight));
}

constexpr ListedRun<CrossEntropyRun, CrossEntropyProblem> kForward[] = {
#if defined(__x86_64__)
    {"fused amx", Isa::amx, cpu::amx_tiles::cross_entropy, cpu::amx_tiles::cross_entropy_refuses},
    {"fused avx512_bf16", Isa::avx512_bf16, cpu::soft_tiles::cross_entropy,
     cpu::soft_tiles::cross_entropy_refuses},
    {"from hot sums", Isa::avx512_bf16, hot_forward, hot_refuses},
    {"tiled avx512", Isa::avx512, tiled_forward<cpu::row_sum_update_avx512>},
    {"tiled avx2", Isa::avx2, tiled_forward<cpu::row_sum_update_avx2>},
#endif
    {"ref", Isa::ref, reference_forward},
};

constexpr ListedRun<CrossEntropyBackwardRun, CrossEntropyProblem> kBackward[] = {
#if defined(__x86_64__)
    {"fused amx", Isa::amx, cpu::amx_tiles::cross_entropy_backward, cpu::amx_tiles::cross_entropy_refuses},
    {"fused avx512_bf16", Isa::avx512_bf16, cpu::soft_tiles::cross_entropy_backward,
     cpu::soft_tiles::cross_entropy_refuses},
    {"from hot sums", Isa::avx512_bf16, hot_backward, hot_refuses},
    {"tiled avx512", Isa::avx512, tiled_backward<cpu::row_gradient_avx512>},
    {"tiled avx2", Isa::avx2, tiled_backward<cpu::row_gradient_avx2>},
#endif
    {"ref", Isa::ref, reference_backward},
};

// Calls `summed` for block after block.
void sum_blocks(const CrossEntropyProblem& a, const LossGradientsProblem& gradients) {
  const std::int64_t block = loss_rows_at_once(a);
  for (std::int64_t row = 0; row < a.rows; row += block) gradients.summed(row, std::min(a.rows, row + block));
}

// Bytes of the buffers that the chosen implementation works in.
std::size_t workspace(const CrossEntropyProblem& args, bool backward) {
  auto* const chosen = choose("linear_cross_entropy", kForward, args);
  if (chosen == reference_forward) return 0;
#if defined(__x86_64__)
  if (chosen == cpu::amx_tiles::cross_entropy) return cpu::amx_tiles::cross_entropy_workspace(args, backward);
  if (chosen == cpu::soft_tiles::cross_entropy)
    return cpu::soft_tiles::cross_entropy_workspace(args, backward);
#endif
  if (chosen == hot_forward) {
    return backward ? gradient_bytes(args) + WeightGradient::sum_bytes(args, kGradientBlock, false)
                    : row_sum_bytes(args);
  }
  const auto logits =
      static_cast<std::size_t>(std::min(kRowBlock, args.rows) * std::min(kVocabBlock, args.vocab));
  if (!backward) return logits * sizeof(float);
  return logits * (sizeof(float) + (args.dtype == DType::bf16 ? sizeof(bfloat16) : 0)) +
         WeightGradient::sum_bytes(args, kVocabBlock, false);
}

// On an abstract pool: counts the products (logits; backward makes them again and has two more).
bool skips_products(const ThreadPool& pool, const char* kernel, const CrossEntropyProblem& args,
                    int products) {
  const auto d = [](std::int64_t x) { return static_cast<double>(x); };
  const double operands = d(args.rows * args.emb) + d(args.emb) * d(args.vocab);
  return pool.skips({kernel, args.dtype, 2 * products * d(args.rows) * d(args.emb) * d(args.vocab),
                     products * operands * d(static_cast<std::int64_t>(size_of(args.dtype)))});
}

bool skipped(const ThreadPool& pool, const char* kernel, const CrossEntropyProblem& args, bool backward) {
  if (!skips_products(pool, kernel, args, backward ? 3 : 1)) return false;
  const Buffer taken(pool.counts_workspace() ? workspace(args, backward) : 0);
  return true;
}

// Loss and gradients one after the other: the logits are made twice.
void gradients_apart(ThreadPool& pool, const CrossEntropyProblem& a, const LossGradientsProblem& out) {
  run_linear_cross_entropy(pool, a, out.lse, out.target_logit);
  sum_blocks(a, out);
  run_linear_cross_entropy_backward(pool, a, out.lse, out.softmax_coefficient, out.target_coefficient,
                                    out.dhidden, out.dweight);
}

constexpr ListedRun<CrossEntropyGradientsRun, CrossEntropyProblem> kGradients[] = {
#if defined(__x86_64__)
    {"fused amx", Isa::amx, cpu::amx_tiles::cross_entropy_gradients,
     cpu::amx_tiles::cross_entropy_gradients_refuses},
    {"fused avx512_bf16", Isa::avx512_bf16, cpu::soft_tiles::cross_entropy_gradients,
     cpu::soft_tiles::cross_entropy_gradients_refuses},
    {"narrow avx512", Isa::avx512, cpu::narrow_loss::gradients_avx512, cpu::narrow_loss::refuses},
    {"kept avx512", Isa::avx512, kept_logits::gradients_avx512, kept_logits::refuses},
    {"narrow avx2", Isa::avx2, cpu::narrow_loss::gradients_avx2, cpu::narrow_loss::refuses},
    {"kept avx2", Isa::avx2, kept_logits::gradients_avx2, kept_logits::refuses},
#endif
    {"apart", Isa::ref, gradients_apart},
};

std::size_t gradients_workspace([[maybe_unused]] CrossEntropyGradientsRun* chosen,
                                [[maybe_unused]] const CrossEntropyProblem& args) {
#if defined(__x86_64__)
  if (chosen == cpu::amx_tiles::cross_entropy_gradients)
    return cpu::amx_tiles::cross_entropy_gradients_workspace(args);
  if (chosen == cpu::soft_tiles::cross_entropy_gradients)
    return cpu::soft_tiles::cross_entropy_gradients_workspace(args);
  if (chosen == cpu::narrow_loss::gradients_avx512 || chosen == cpu::narrow_loss::gradients_avx2)
    return cpu::narrow_loss::workspace(args);
  if (chosen == kept_logits::gradients_avx512 || chosen == kept_logits::gradients_avx2)
    return kept_logits::workspace(args);
#endif
  return 0;
}

}  // namespace

void run_linear_cross_entropy(ThreadPool& pool, const CrossEntropyProblem& a, float* lse,
                              float* target_logit) {
  if (skipped(pool, "linear_cross_entropy", a, false)) return;
  choose("linear_cross_entropy", kForward, a)(pool, a, lse, target_logit);
}

void run_linear_cross_entropy_backward(ThreadPool& pool, const CrossEntropyProblem& a, const float* lse,
                                       const float* softmax_coefficient, const float* target_coefficient,
                                       float* dhidden, void* dweight) {
  if (skipped(pool, "linear_cross_entropy_backward", a, true)) return;
  choose("linear_cross_entropy_backward", kBackward, a)(pool, a, lse, softmax_coefficient, target_coefficient,
                                                        dhidden, dweight);
}

std::int64_t loss_rows_at_once(const CrossEntropyProblem& problem) {
  // Of kept exponentials. A block reads and writes all of dweight, which few rows would not pay for.
  constexpr std::int64_t kKeptBytes = std::int64_t{128} << 20, kLeast = 256;
  const std::int64_t row =
      2 * std::max<std::int64_t>(1, problem.whole_vocab > 0 ? problem.whole_vocab : problem.vocab);
  return std::max<std::int64_t>(1, kKeptBytes / row / kLeast) * kLeast;
}

void run_linear_cross_entropy_with_gradients(ThreadPool& pool, const CrossEntropyProblem& problem,
                                             const LossGradientsProblem& gradients) {
  auto* const chosen = choose("linear_cross_entropy_gradients", kGradients, problem);
  if (chosen == gradients_apart) return gradients_apart(pool, problem, gradients);
  if (!skips_products(pool, "linear_cross_entropy_gradients", problem, 3))
    return chosen(pool, problem, gradients);
  const Buffer taken(pool.counts_workspace() ? gradients_workspace(chosen, problem) : 0);
  sum_blocks(problem, gradients);
}

}  // namespace switchyard

#include "kernels/optimizer/step_judge.h"

#include <cmath>

#include "core/error.h"
#include "kernels/registry/kernel.h"

namespace switchyard {
namespace {

template <typename T>
void sum_rows_of(const RowSums& matrix) {
  const std::int64_t n = matrix.rows.dim(1);
  const T* const rows = matrix.rows.kernel_data<T>();
  double* const sums = matrix.sums.kernel_data<double>();
  for (std::int64_t r = 0; r < matrix.rows.dim(0); ++r) {
    double sum = 0;
    for (std::int64_t i = 0; i < n; ++i) sum += static_cast<double>(rows[r * n + i]);
    sums[r] = sum;
  }
}

void sum_all_rows(ThreadPool&, const std::span<const RowSums>& matrices) {
  for (const RowSums& matrix : matrices)
    matrix.rows.dtype() == DType::f32 ? sum_rows_of<float>(matrix) : sum_rows_of<double>(matrix);
}

void say_loss(ThreadPool&, const SpokenLossArgs& args) {
  double* const sums = args.sums.kernel_data<double>();
  const auto count = static_cast<std::size_t>(args.sums.size());
  if (args.from_parts) {
    double balance = 0;
    for (std::size_t i = kLosses; i < count; ++i) balance += sums[i];
    if (count > kLosses) sums[kBalanceLoss] = balance * args.balance_factor / args.layers_averaged;
    sums[kLoss] = sums[kLmLoss] + sums[kPredictionLoss] + sums[kBalanceLoss] + sums[kIndexerLoss];
  }
  *args.spoken.kernel_data<double>() = args.speaks || !std::isfinite(sums[kLoss]) ? sums[kLoss] : 0.0;
}

void judge(ThreadPool&, const JudgeArgs& args) {
  const double* const squares_of = args.squares.kernel_data<double>();
  double squares = 0;
  for (std::int64_t i = 0; i < args.squares.size(); ++i) squares += squares_of[i];
  const double norm = std::sqrt(squares), loss = *args.loss.kernel_data<double>();
  auto& numbers = *reinterpret_cast<UpdateNumbers*>(args.numbers.kernel_data<float>());
  numbers.adam.grad_scale = args.clip > 0 && norm >= args.clip ? static_cast<float>(args.clip / norm) : 1.0f;
  numbers.is_good = std::isfinite(loss) && std::isfinite(norm) ? 1.0f : 0.0f;
  *args.is_good.kernel_data<float>() = numbers.is_good;
}

Work rows_work(const std::span<const RowSums>& matrices) {
  Work work{.dtype = DType::f64};
  for (const RowSums& matrix : matrices) {
    work.flops += static_cast<double>(matrix.rows.size());
    work.bytes += static_cast<double>(matrix.rows.bytes() + matrix.sums.bytes());
  }
  return work;
}

Work spoken_work(const SpokenLossArgs& args) {
  return {.dtype = DType::f64,
          .flops = static_cast<double>(args.sums.size()),
          .bytes = static_cast<double>(args.sums.bytes() + args.spoken.bytes())};
}

Work judge_work(const JudgeArgs& args) {
  return {.dtype = DType::f64,
          .flops = static_cast<double>(args.squares.size()),
          .bytes = static_cast<double>(args.squares.bytes() + args.numbers.bytes())};
}

const TensorView& first_rows(const std::span<const RowSums>& matrices) {
  return matrices[0].rows;
}

constexpr Implementation<std::span<const RowSums>> kRowSums[] = {{"cuda", Gpu::any, gpu::sum_rows},
                                                                 {"portable", Isa::ref, sum_all_rows}};
constexpr Kernel<std::span<const RowSums>> kSumRows{"sum_rows", rows_work, first_rows, kRowSums};
constexpr Implementation<SpokenLossArgs> kSpeakers[] = {{"cuda", Gpu::any, gpu::spoken_loss},
                                                        {"portable", Isa::ref, say_loss}};
constexpr Kernel<SpokenLossArgs> kSpoken{"spoken_loss", spoken_work, &SpokenLossArgs::sums, kSpeakers};
constexpr Implementation<JudgeArgs> kJudges[] = {{"cuda", Gpu::any, gpu::judge_step},
                                                 {"portable", Isa::ref, judge}};
constexpr Kernel<JudgeArgs> kJudge{"judge_step", judge_work, &JudgeArgs::numbers, kJudges};

}  // namespace

void sum_rows(ThreadPool& pool, std::span<const RowSums> matrices) {
  CHECK(matrices.size() == 1 || matrices.size() == 2, "[sum_rows] {} matrices", matrices.size());
  for (const auto& [rows, sums] : matrices)
    CHECK((rows.dtype() == DType::f32 || rows.dtype() == DType::f64) && rows.rank() == 2 &&
              rows.is_contiguous() && sums.dtype() == DType::f64 && sums.size() == rows.dim(0) &&
              sums.is_contiguous(),
          "[sum_rows] {} of {} into {}", to_string(rows.shape()), name_of(rows.dtype()),
          to_string(sums.shape()));
  run(pool, kSumRows, matrices);
}

void spoken_loss(ThreadPool& pool, const SpokenLossArgs& args) {
  CHECK(args.sums.dtype() == DType::f64 && args.sums.is_contiguous() &&
            args.sums.size() >= static_cast<std::int64_t>(kLosses) && args.spoken.dtype() == DType::f64 &&
            args.spoken.size() == 1,
        "[spoken_loss] of {} of {}", to_string(args.sums.shape()), name_of(args.sums.dtype()));
  run(pool, kSpoken, args);
}

void judge_step(ThreadPool& pool, const JudgeArgs& args) {
  CHECK(args.squares.dtype() == DType::f64 && args.squares.is_contiguous() &&
            args.loss.dtype() == DType::f64 && args.loss.size() == 1 && args.is_good.dtype() == DType::f32 &&
            args.is_good.size() == 1,
        "[judge_step] squares {}, loss {} of {}", to_string(args.squares.shape()),
        to_string(args.loss.shape()), name_of(args.loss.dtype()));
  check_numbers("judge_step", args.numbers);
  run(pool, kJudge, args);
}

}  // namespace switchyard

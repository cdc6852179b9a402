// Judges a training step by few threads: each adds the host's sums term by term, so both agree to the bit.
#include "kernels/cuda/portable.h"
#include "kernels/cuda/wide.h"
#include "kernels/optimizer/step_judge.h"

namespace switchyard::gpu {
namespace {

struct Matrix {
  const void* rows = nullptr;
  bool is_f32 = false;
  std::int64_t count = 0, length = 0;
  double* sums = nullptr;

  static Matrix of(const RowSums& x) {
    return {x.rows.device_address(), x.rows.dtype() == DType::f32, x.rows.dim(0), x.rows.dim(1),
            x.sums.device_data<double>()};
  }
};

// A thread a row.
GPU_KERNEL add_rows(Matrix first, Matrix second) {
  const std::int64_t thread = thread_of_grid();
  const bool is_second = thread >= first.count;
  const Matrix& matrix = is_second ? second : first;
  const std::int64_t row = is_second ? thread - first.count : thread;
  if (row >= matrix.count) return;
  const std::int64_t begin = row * matrix.length, end = begin + matrix.length;
  double sum = 0;
  if (matrix.is_f32) {
    for (std::int64_t i = begin; i < end; ++i)
      sum += static_cast<double>(static_cast<const float*>(matrix.rows)[i]);
  } else {
    for (std::int64_t i = begin; i < end; ++i) sum += static_cast<const double*>(matrix.rows)[i];
  }
  matrix.sums[row] = sum;
}

// x - x is 0 for finite numbers alone.
GPU_FUNCTION bool is_finite(double x) {
  return x - x == 0;
}

struct Spoken {
  double* sums;
  std::int64_t count;
  bool from_parts, speaks;
  double balance_factor, layers_averaged;
  double* spoken;
};

GPU_KERNEL say_loss(Spoken of) {
  if (thread_index() != 0) return;
  if (of.from_parts) {
    double balance = 0;
    for (std::int64_t i = kLosses; i < of.count; ++i) balance += of.sums[i];
    if (of.count > static_cast<std::int64_t>(kLosses))
      of.sums[kBalanceLoss] = balance * of.balance_factor / of.layers_averaged;
    of.sums[kLoss] =
        of.sums[kLmLoss] + of.sums[kPredictionLoss] + of.sums[kBalanceLoss] + of.sums[kIndexerLoss];
  }
  *of.spoken = of.speaks || !is_finite(of.sums[kLoss]) ? of.sums[kLoss] : 0.0;
}

struct Judged {
  const double* squares;
  std::int64_t count;
  const double* loss;
  double clip;
  UpdateNumbers* numbers;
  float* is_good;
};

GPU_KERNEL judge(Judged of) {
  if (thread_index() != 0) return;
  double squares = 0;
  for (std::int64_t i = 0; i < of.count; ++i) squares += of.squares[i];
  const double norm = sqrt(squares);
  const bool is_clipped = of.clip > 0 && norm >= of.clip;
  of.numbers->adam.grad_scale = static_cast<float>(is_clipped ? of.clip / norm : 1.0);
  *of.is_good = of.numbers->is_good = is_finite(*of.loss) && is_finite(norm) ? 1.0f : 0.0f;
}

}  // namespace

void sum_rows(const std::span<const RowSums>& matrices) {
  const Matrix first = Matrix::of(matrices[0]), second = matrices.size() > 1 ? Matrix::of(matrices[1]) : Matrix();
  launch(threads_for(first.count + second.count), add_rows, first, second);
}

void spoken_loss(const SpokenLossArgs& args) {
  launch({.blocks = 1, .threads = kWarp}, say_loss,
         Spoken{.sums = args.sums.device_data<double>(),
                .count = args.sums.size(),
                .from_parts = args.from_parts,
                .speaks = args.speaks,
                .balance_factor = args.balance_factor,
                .layers_averaged = args.layers_averaged,
                .spoken = args.spoken.device_data<double>()});
}

void judge_step(const JudgeArgs& args) {
  launch({.blocks = 1, .threads = kWarp}, judge,
         Judged{.squares = args.squares.device_data<double>(),
                .count = args.squares.size(),
                .loss = args.loss.device_data<double>(),
                .clip = args.clip,
                .numbers = reinterpret_cast<UpdateNumbers*>(args.numbers.device_data<float>()),
                .is_good = args.is_good.device_data<float>()});
}

}  // namespace switchyard::gpu

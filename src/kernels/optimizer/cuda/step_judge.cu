// One thread judges a training step: it adds the host's sums term by term, so both agree to the bit.
#include "kernels/cuda/portable.h"
#include "kernels/optimizer/step_judge.h"

namespace switchyard::gpu {
namespace {

struct Judged {
  const double* squares;
  std::int64_t ranges;
  const float* losses;  // of the column
  std::int64_t passes, stride;
  double clip;
  UpdateNumbers* numbers;
};

GPU_KERNEL judge(Judged of) {
  if (thread_index() != 0) return;
  double squares = 0, loss = 0;
  for (std::int64_t i = 0; i < of.ranges; ++i) squares += of.squares[i];
  for (std::int64_t i = 0; i < of.passes; ++i) loss += static_cast<double>(of.losses[i * of.stride]);
  const double norm = sqrt(squares);
  const bool is_clipped = of.clip > 0 && norm >= of.clip;
  of.numbers->adam.grad_scale = static_cast<float>(is_clipped ? of.clip / norm : 1.0);
  // x - x is 0 for finite numbers alone.
  of.numbers->goes = loss - loss == 0 && norm - norm == 0 ? 1.0f : 0.0f;
}

}  // namespace

void judge_step(const JudgeArgs& args) {
  launch({.blocks = 1, .threads = kWarp}, judge,
         Judged{.squares = args.squares.device_data<double>(),
                .ranges = args.squares.size(),
                .losses = args.losses.device_data<float>() + args.column,
                .passes = args.losses.dim(0),
                .stride = args.losses.dim(1),
                .clip = args.clip,
                .numbers = reinterpret_cast<UpdateNumbers*>(args.numbers.device_data<float>())});
}

}  // namespace switchyard::gpu

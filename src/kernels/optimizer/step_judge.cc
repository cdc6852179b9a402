#include "kernels/optimizer/step_judge.h"

#include <cmath>

#include "core/error.h"
#include "kernels/registry/kernel.h"

namespace switchyard {
namespace {

void judge(ThreadPool&, const JudgeArgs& args) {
  const double* const squares_of = args.squares.kernel_data<double>();
  const float* const loss_of = args.losses.kernel_data<float>() + args.column;
  double squares = 0, loss = 0;
  for (std::int64_t i = 0; i < args.squares.size(); ++i) squares += squares_of[i];
  for (std::int64_t i = 0; i < args.losses.dim(0); ++i)
    loss += static_cast<double>(loss_of[i * args.losses.dim(1)]);
  const double norm = std::sqrt(squares);
  auto& numbers = *reinterpret_cast<UpdateNumbers*>(args.numbers.kernel_data<float>());
  numbers.adam.grad_scale = args.clip > 0 && norm >= args.clip ? static_cast<float>(args.clip / norm) : 1.0f;
  numbers.goes = std::isfinite(loss) && std::isfinite(norm) ? 1.0f : 0.0f;
}

Work judge_work(const JudgeArgs& args) {
  return {.dtype = DType::f64,
          .flops = static_cast<double>(args.squares.size() + args.losses.dim(0)),
          .bytes = static_cast<double>(args.squares.bytes() + args.losses.bytes() + args.numbers.bytes())};
}

constexpr Implementation<JudgeArgs> kJudges[] = {{"cuda", Gpu::any, gpu::judge_step},
                                                 {"portable", Isa::ref, judge}};
constexpr Kernel<JudgeArgs> kJudge{"judge_step", judge_work, &JudgeArgs::numbers, kJudges};

}  // namespace

void judge_step(ThreadPool& pool, const JudgeArgs& args) {
  CHECK(args.squares.dtype() == DType::f64 && args.squares.is_contiguous(), "[judge_step] squares {} of {}",
        to_string(args.squares.shape()), name_of(args.squares.dtype()));
  CHECK(args.losses.rank() == 2 && args.losses.dtype() == DType::f32 && args.losses.is_contiguous() &&
            args.column >= 0 && args.column < args.losses.dim(1),
        "[judge_step] column {} of losses {}", args.column, to_string(args.losses.shape()));
  CHECK(args.numbers.size() == kUpdateNumbers && args.numbers.dtype() == DType::f32,
        "[judge_step] numbers {}", to_string(args.numbers.shape()));
  run(pool, kJudge, args);
}

}  // namespace switchyard

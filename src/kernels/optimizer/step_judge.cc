#include "kernels/optimizer/step_judge.h"

#include "core/error.h"

namespace switchyard {

void judge_step(const JudgeArgs& args) {
  CHECK(args.squares.on_gpu() && args.squares.dtype() == DType::f64 && args.squares.is_contiguous(),
        "[judge] squares {} of {}", to_string(args.squares.shape()), name_of(args.squares.dtype()));
  CHECK(args.losses.rank() == 2 && args.losses.dtype() == DType::f32 && args.losses.is_contiguous() &&
            args.column >= 0 && args.column < args.losses.dim(1),
        "[judge] column {} of losses {}", args.column, to_string(args.losses.shape()));
  CHECK(args.numbers.size() == 16 && args.numbers.dtype() == DType::f32, "[judge] numbers {}",
        to_string(args.numbers.shape()));
  gpu::judge_step(args);
}

}  // namespace switchyard

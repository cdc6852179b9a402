// The way back through the down projection of gated experts (grouped_matmul.h says what groups are).
#pragma once

#include "core/tensor_view.h"
#include "core/thread_pool.h"

namespace switchyard {

// y[r] = hidden[r] · wo[g(r)] with hidden = silu(gate) · up · row_weights[r]. Makes what swiglu_backward
// (kernels/pointwise/elementwise.h) makes of dhidden = dy · woᵀ, which is rounded to the operands' dtype and
// not stored, and hidden itself, which the gradient of wo needs. f32 or bf16.
struct GatedDownBackwardArgs {
  TensorView dy;            // [R,m]
  TensorView wo;            // [G,n,m]
  TensorView group_sizes;   // [G] i32
  TensorView gate, up;      // [R,n]
  TensorView row_weights;   // [R] f32
  TensorView dgate, dup;    // [R,n]
  TensorView hidden;        // [R,n]
  TensorView drow_weights;  // [R] f32
};
void gated_down_backward(ThreadPool& pool, const GatedDownBackwardArgs& args);

// True where one kernel makes all of them, and a caller saves by asking for them together. The results need
// not be defined.
bool fuses_gated_down_backward(const GatedDownBackwardArgs& args);

}  // namespace switchyard

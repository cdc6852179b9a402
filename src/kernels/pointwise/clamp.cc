#include "kernels/pointwise/clamp.h"

#include "kernels/element/element.h"

namespace switchyard {
namespace {

SWITCHYARD_PORTABLE_KERNEL(kClamp, clamp, 2);
SWITCHYARD_PORTABLE_KERNEL(kClampBackward, clamp_backward, 2);

float rounded(float bound, const TensorView& x) {
  return x.dtype() == DType::f32 ? bound : static_cast<float>(bfloat16(bound));
}

}  // namespace

void clamp(ThreadPool& pool, float bound, const TensorView& x, const TensorView& out) {
  run_elements(pool, kClamp, {.in = {&x}, .out = {&out}, .number = rounded(bound, x)});
}

void clamp_backward(ThreadPool& pool, float bound, const TensorView& x, const TensorView& dout,
                    const TensorView& dx) {
  run_elements(pool, kClampBackward, {.in = {&x, &dout}, .out = {&dx}, .number = rounded(bound, x)});
}

}  // namespace switchyard

#include "kernels/pointwise/clamp.h"

#include "kernels/element/element.h"

namespace switchyard {
namespace {

constexpr Implementation<ElementArgs> kClamps[] = {SWITCHYARD_PORTABLE_ROWS(clamp)},
                                      kClampBackwards[] = {SWITCHYARD_PORTABLE_ROWS(clamp_backward)};
constexpr Kernel<ElementArgs> kClamp = element_kernel<2>("clamp", kClamps),
                              kClampBackward = element_kernel<2>("clamp_backward", kClampBackwards);

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

#include "kernels/pointwise/soft_cap.h"

#include "kernels/element/element.h"

namespace switchyard {
namespace {

constexpr Implementation<ElementArgs> kSoftCaps[] = {SWITCHYARD_PORTABLE_ROWS(soft_cap)},
                                      kSoftCapBackwards[] = {SWITCHYARD_PORTABLE_ROWS(soft_cap_backward)};
constexpr Kernel<ElementArgs> kSoftCap = element_kernel<20>("soft_cap", kSoftCaps),
                              kSoftCapBackward = element_kernel<4>("soft_cap_backward", kSoftCapBackwards);

}  // namespace

void soft_cap(ThreadPool& pool, float cap, const TensorView& x, const TensorView& out) {
  run_elements(pool, kSoftCap, {.in = {&x}, .out = {&out}, .number = cap});
}

void soft_cap_backward(ThreadPool& pool, float cap, const TensorView& out, const TensorView& dout,
                       const TensorView& dx) {
  run_elements(pool, kSoftCapBackward, {.in = {&out, &dout}, .out = {&dx}, .number = cap});
}

}  // namespace switchyard

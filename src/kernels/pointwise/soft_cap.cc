#include "kernels/pointwise/soft_cap.h"

#include "kernels/element/element.h"

namespace switchyard {
namespace {

SWITCHYARD_PORTABLE_KERNEL(kSoftCap, soft_cap, 20);
SWITCHYARD_PORTABLE_KERNEL(kSoftCapBackward, soft_cap_backward, 4);

}  // namespace

void soft_cap(ThreadPool& pool, float cap, const TensorView& x, const TensorView& out) {
  run_elements(pool, kSoftCap, {.in = {&x}, .out = {&out}, .number = cap});
}

void soft_cap_backward(ThreadPool& pool, float cap, const TensorView& out, const TensorView& dout,
                       const TensorView& dx) {
  run_elements(pool, kSoftCapBackward, {.in = {&out, &dout}, .out = {&dx}, .number = cap});
}

}  // namespace switchyard

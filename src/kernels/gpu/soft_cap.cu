#include "kernels/gpu/code.h"
#include "kernels/gpu/kernels.h"
#include "kernels/gpu/wide.h"
#include "kernels/soft_cap.h"

namespace switchyard::gpu {
namespace {

GPU_KERNEL cap_elements(const float* x, float cap, float* out, std::int64_t count) {
  const std::int64_t i = thread_of_grid();
  if (i < count) out[i] = cap * tanhf(x[i] / cap);
}

GPU_KERNEL cap_gradient(const float* out, const float* dout, float cap, float* dx, std::int64_t count) {
  const std::int64_t i = thread_of_grid();
  if (i >= count) return;
  const float tanh_of_x = out[i] / cap;
  dx[i] = dout[i] * (1.0f - tanh_of_x * tanh_of_x);
}

}  // namespace

void soft_cap(float cap, const TensorView& x, const TensorView& out) {
  launch(threads_for(x.size()), cap_elements, x.device_data<float>(), cap, out.device_data<float>(),
         x.size());
}

void soft_cap_backward(float cap, const TensorView& out, const TensorView& dout, const TensorView& dx) {
  launch(threads_for(out.size()), cap_gradient, out.device_data<float>(), dout.device_data<float>(), cap,
         dx.device_data<float>(), out.size());
}

}  // namespace switchyard::gpu

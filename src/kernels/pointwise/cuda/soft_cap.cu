#include "kernels/cuda/portable.h"
#include "kernels/cuda/wide.h"
#include "kernels/pointwise/kernels.h"

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

void soft_cap(const BoundArgs& args) {
  launch(threads_for(args.x.size()), cap_elements, args.x.device_data<float>(), args.bound,
         args.out.device_data<float>(), args.x.size());
}

void soft_cap_backward(const BoundBackwardArgs& args) {
  launch(threads_for(args.x.size()), cap_gradient, args.x.device_data<float>(),
         args.dout.device_data<float>(), args.bound, args.dx.device_data<float>(), args.x.size());
}

}  // namespace switchyard::gpu

#include "kernels/soft_cap.h"

#include <cmath>

#include "kernels/gpu/kernels.h"

namespace switchyard {
namespace {

constexpr std::int64_t kElementsAtOnce = 4096;

const float* elements(const TensorView& x, std::int64_t count) {
  CHECK(x.size() == count && x.is_contiguous(), "[soft_cap] {} elements beside {}", x.size(), count);
  return x.device_data<float>();
}

}  // namespace

void soft_cap(ThreadPool& pool, float cap, const TensorView& x, const TensorView& out) {
  const std::int64_t n = x.size();
  const float* const from = elements(x, n);
  auto* const to = const_cast<float*>(elements(out, n));
  if (pool.skips({"soft_cap", DType::f32, 20 * static_cast<double>(n), 8 * static_cast<double>(n)})) return;
  if (x.on_gpu()) return gpu::soft_cap(cap, x, out);
  pool.for_range(n, kElementsAtOnce, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) to[i] = cap * std::tanh(from[i] / cap);
  });
}

void soft_cap_backward(ThreadPool& pool, float cap, const TensorView& out, const TensorView& dout,
                       const TensorView& dx) {
  const std::int64_t n = out.size();
  const float *const capped = elements(out, n), *const g = elements(dout, n);
  auto* const to = const_cast<float*>(elements(dx, n));
  if (pool.skips({"soft_cap_backward", DType::f32, 4 * static_cast<double>(n), 12 * static_cast<double>(n)}))
    return;
  if (out.on_gpu()) return gpu::soft_cap_backward(cap, out, dout, dx);
  pool.for_range(n, kElementsAtOnce, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const float tanh = capped[i] / cap;
      to[i] = g[i] * (1 - tanh * tanh);
    }
  });
}

}  // namespace switchyard

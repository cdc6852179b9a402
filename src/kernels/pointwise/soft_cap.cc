#include "kernels/pointwise/soft_cap.h"

#include <cmath>

#include "kernels/pointwise/kernels.h"
#include "kernels/registry/kernel.h"

namespace switchyard {
namespace {

constexpr std::int64_t kSoftCapElementsAtOnce = 4096;

void cap_elements(ThreadPool& pool, const BoundArgs& args) {
  const float* const x = args.x.kernel_data<float>();
  float* const out = args.out.kernel_data<float>();
  pool.for_range(args.x.size(), kSoftCapElementsAtOnce, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) out[i] = args.bound * std::tanh(x[i] / args.bound);
  });
}

void cap_gradients(ThreadPool& pool, const BoundBackwardArgs& args) {
  const float *const capped = args.x.kernel_data<float>(), *const dout = args.dout.kernel_data<float>();
  float* const dx = args.dx.kernel_data<float>();
  pool.for_range(args.x.size(), kSoftCapElementsAtOnce, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const float tanh = capped[i] / args.bound;
      dx[i] = dout[i] * (1 - tanh * tanh);
    }
  });
}

Work cap_work(const BoundArgs& args) {
  const auto n = static_cast<double>(args.x.size());
  return {.flops = 20 * n, .bytes = 8 * n};
}

Work cap_backward_work(const BoundBackwardArgs& args) {
  const auto n = static_cast<double>(args.x.size());
  return {.flops = 4 * n, .bytes = 12 * n};
}

constexpr Implementation<BoundArgs> kSoftCapForwards[] = {{"cuda", Gpu::any, gpu::soft_cap},
                                                          {"portable", Isa::ref, cap_elements}};
constexpr Implementation<BoundBackwardArgs> kSoftCapBackwards[] = {{"cuda", Gpu::any, gpu::soft_cap_backward},
                                                                   {"portable", Isa::ref, cap_gradients}};
constexpr Kernel<BoundArgs> kSoftCap{"soft_cap", cap_work, &BoundArgs::x, kSoftCapForwards};
constexpr Kernel<BoundBackwardArgs> kSoftCapBackward{"soft_cap_backward", cap_backward_work,
                                                     &BoundBackwardArgs::x, kSoftCapBackwards};

void check_capped(const TensorView& x, std::initializer_list<const TensorView*> others) {
  for (const TensorView* other : others)
    CHECK(other->size() == x.size() && other->is_contiguous() && x.is_contiguous() &&
              other->dtype() == DType::f32 && x.dtype() == DType::f32,
          "[soft_cap] {} elements of {} beside {} of {}", other->size(), name_of(other->dtype()), x.size(),
          name_of(x.dtype()));
}

}  // namespace

void soft_cap(ThreadPool& pool, float cap, const TensorView& x, const TensorView& out) {
  check_capped(x, {&out});
  run(pool, kSoftCap, {cap, x, out});
}

void soft_cap_backward(ThreadPool& pool, float cap, const TensorView& out, const TensorView& dout,
                       const TensorView& dx) {
  check_capped(out, {&dout, &dx});
  run(pool, kSoftCapBackward, {cap, out, dout, dx});
}

}  // namespace switchyard

#include "kernels/pointwise/soft_cap.h"

#include <cmath>

#include "kernels/pointwise/kernels.h"
#include "kernels/registry/kernel.h"

namespace switchyard {
namespace {

constexpr std::int64_t kElementsAtOnce = 4096;

void cap_elements(ThreadPool& pool, const BoundArgs& args) {
  const float* const x = args.x.kernel_data<float>();
  float* const out = args.out.kernel_data<float>();
  pool.for_range(args.x.size(), kElementsAtOnce, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) out[i] = args.bound * std::tanh(x[i] / args.bound);
  });
}

void cap_gradients(ThreadPool& pool, const BoundBackwardArgs& args) {
  const float *const capped = args.x.kernel_data<float>(), *const dout = args.dout.kernel_data<float>();
  float* const dx = args.dx.kernel_data<float>();
  pool.for_range(args.x.size(), kElementsAtOnce, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const float tanh = capped[i] / args.bound;
      dx[i] = dout[i] * (1 - tanh * tanh);
    }
  });
}

Work forward_work(const BoundArgs& args) {
  const auto n = static_cast<double>(args.x.size());
  return {.flops = 20 * n, .bytes = 8 * n};
}

Work backward_work(const BoundBackwardArgs& args) {
  const auto n = static_cast<double>(args.x.size());
  return {.flops = 4 * n, .bytes = 12 * n};
}

constexpr Implementation<BoundArgs> kForwards[] = {{"cuda", Gpu::any, gpu::soft_cap},
                                                   {"portable", Isa::ref, cap_elements}};
constexpr Implementation<BoundBackwardArgs> kBackwards[] = {{"cuda", Gpu::any, gpu::soft_cap_backward},
                                                            {"portable", Isa::ref, cap_gradients}};
constexpr Kernel<BoundArgs> kSoftCap{"soft_cap", forward_work, &BoundArgs::x, kForwards};
constexpr Kernel<BoundBackwardArgs> kSoftCapBackward{"soft_cap_backward", backward_work,
                                                     &BoundBackwardArgs::x, kBackwards};

void check_alike(const TensorView& x, std::initializer_list<const TensorView*> others) {
  for (const TensorView* other : others)
    CHECK(other->size() == x.size() && other->is_contiguous() && x.is_contiguous() &&
              other->dtype() == DType::f32 && x.dtype() == DType::f32,
          "[soft_cap] {} elements of {} beside {} of {}", other->size(), name_of(other->dtype()), x.size(),
          name_of(x.dtype()));
}

}  // namespace

void soft_cap(ThreadPool& pool, float cap, const TensorView& x, const TensorView& out) {
  check_alike(x, {&out});
  run(pool, kSoftCap, {cap, x, out});
}

void soft_cap_backward(ThreadPool& pool, float cap, const TensorView& out, const TensorView& dout,
                       const TensorView& dx) {
  check_alike(out, {&dout, &dx});
  run(pool, kSoftCapBackward, {cap, out, dout, dx});
}

}  // namespace switchyard

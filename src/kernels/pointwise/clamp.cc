#include "kernels/pointwise/clamp.h"

#include "kernels/pointwise/float_elements.h"
#include "kernels/pointwise/kernels.h"
#include "kernels/registry/kernel.h"

namespace switchyard {
namespace {

constexpr std::int64_t kClampElementsAtOnce = 16384;

void clamp_elements(ThreadPool& pool, const BoundArgs& args) {
  with_elements(args.x.dtype(), [&]<typename T>(T) {
    const T* const from = args.x.kernel_data<T>();
    T* const to = args.out.kernel_data<T>();
    const T high(args.bound), low(-args.bound);
    pool.for_range(args.x.size(), kClampElementsAtOnce, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const auto value = static_cast<float>(from[i]);
        to[i] = value > static_cast<float>(high) ? high : value < static_cast<float>(low) ? low : from[i];
      }
    });
  });
}

void clamp_gradients(ThreadPool& pool, const BoundBackwardArgs& args) {
  with_elements(args.x.dtype(), [&]<typename T>(T) {
    const T *const from = args.x.kernel_data<T>(), *const gradient = args.dout.kernel_data<T>();
    T* const to = args.dx.kernel_data<T>();
    const auto high = static_cast<float>(T(args.bound));
    pool.for_range(args.x.size(), kClampElementsAtOnce, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const auto value = static_cast<float>(from[i]);
        to[i] = value >= -high && value <= high ? gradient[i] : T(0.0f);
      }
    });
  });
}

Work work_of(const TensorView& x, double arrays) {
  return {.dtype = x.dtype(),
          .flops = 2 * static_cast<double>(x.size()),
          .bytes = arrays * static_cast<double>(x.bytes())};
}

Work forward_work(const BoundArgs& args) {
  return work_of(args.x, 2);
}

Work backward_work(const BoundBackwardArgs& args) {
  return work_of(args.x, 3);
}

constexpr Implementation<BoundArgs> kClampForwards[] = {{"cuda", Gpu::any, gpu::clamp},
                                                        {"portable", Isa::ref, clamp_elements}};
constexpr Implementation<BoundBackwardArgs> kClampBackwards[] = {{"cuda", Gpu::any, gpu::clamp_backward},
                                                                 {"portable", Isa::ref, clamp_gradients}};
constexpr Kernel<BoundArgs> kClamp{"clamp", forward_work, &BoundArgs::x, kClampForwards};
constexpr Kernel<BoundBackwardArgs> kClampBackward{"clamp_backward", backward_work, &BoundBackwardArgs::x,
                                                   kClampBackwards};

void check_alike(const TensorView& x, std::initializer_list<const TensorView*> others) {
  for (const TensorView* other : others)
    CHECK(is_float(x.dtype()) && other->dtype() == x.dtype() && other->size() == x.size() &&
              x.is_contiguous() && other->is_contiguous(),
          "[clamp] {} {} beside {} {}", name_of(other->dtype()), to_string(other->shape()),
          name_of(x.dtype()), to_string(x.shape()));
}

}  // namespace

void clamp(ThreadPool& pool, float bound, const TensorView& x, const TensorView& out) {
  check_alike(x, {&out});
  run(pool, kClamp, {bound, x, out});
}

void clamp_backward(ThreadPool& pool, float bound, const TensorView& x, const TensorView& dout,
                    const TensorView& dx) {
  check_alike(x, {&dout, &dx});
  run(pool, kClampBackward, {bound, x, dout, dx});
}

}  // namespace switchyard

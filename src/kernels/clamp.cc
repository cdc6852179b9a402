#include "kernels/clamp.h"

#include "core/error.h"
#include "kernels/float_elements.h"
#include "kernels/gpu/kernels.h"

namespace switchyard {
namespace {

constexpr std::int64_t kClampedAtOnce = 16384;

void check_alike(const char* op, const TensorView& x, const TensorView& other) {
  CHECK(is_float(x.dtype()) && other.dtype() == x.dtype() && other.size() == x.size() && x.is_contiguous() &&
            other.is_contiguous(),
        "[{}] {} {} beside {} {}", op, name_of(other.dtype()), to_string(other.shape()), name_of(x.dtype()),
        to_string(x.shape()));
}

}  // namespace

void clamp(ThreadPool& pool, float bound, const TensorView& x, const TensorView& out) {
  check_alike("clamp", x, out);
  if (pool.skips({"clamp", x.dtype(), 2 * static_cast<double>(x.size()), 2 * static_cast<double>(x.bytes())}))
    return;
  if (x.on_gpu()) return gpu::clamp(bound, x, out);
  with_elements(x.dtype(), [&]<typename T>(T) {
    const T* const from = x.kernel_data<T>();
    T* const to = out.kernel_data<T>();
    const T high(bound), low(-bound);
    pool.for_range(x.size(), kClampedAtOnce, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const auto value = static_cast<float>(from[i]);
        to[i] = value > static_cast<float>(high) ? high : value < static_cast<float>(low) ? low : from[i];
      }
    });
  });
}

void clamp_backward(ThreadPool& pool, float bound, const TensorView& x, const TensorView& dout,
                    const TensorView& dx) {
  check_alike("clamp_backward", x, dout);
  check_alike("clamp_backward", x, dx);
  if (pool.skips({"clamp_backward", x.dtype(), 2 * static_cast<double>(x.size()),
                  3 * static_cast<double>(x.bytes())}))
    return;
  if (x.on_gpu()) return gpu::clamp_backward(bound, x, dout, dx);
  with_elements(x.dtype(), [&]<typename T>(T) {
    const T *const from = x.kernel_data<T>(), *const gradient = dout.kernel_data<T>();
    T* const to = dx.kernel_data<T>();
    const auto high = static_cast<float>(T(bound));
    pool.for_range(x.size(), kClampedAtOnce, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const auto value = static_cast<float>(from[i]);
        to[i] = value >= -high && value <= high ? gradient[i] : T(0.0f);
      }
    });
  });
}

}  // namespace switchyard

// A hard bound of numbers: a thread takes neighbours of 16 bytes.
#include "kernels/cuda/portable.h"
#include "kernels/cuda/wide.h"
#include "kernels/pointwise/kernels.h"

namespace switchyard::gpu {
namespace {

template <int width, typename T>
GPU_KERNEL clamp_elements(const T* x, float bound, T* out, std::int64_t count) {
  const std::int64_t i = thread_of_grid() * width;
  if (i >= count) return;
  float values[width];
  load_floats<width>(x + i, values);
  for (int j = 0; j < width; ++j) {
    const float value = values[j];
    values[j] = value > bound ? bound : value < -bound ? -bound : value;
  }
  store_floats<width>(values, out + i);
}

template <int width, typename T>
GPU_KERNEL clamp_gradients(const T* x, const T* dout, float bound, T* dx, std::int64_t count) {
  const std::int64_t i = thread_of_grid() * width;
  if (i >= count) return;
  float values[width], gradient[width];
  load_floats<width>(x + i, values);
  load_floats<width>(dout + i, gradient);
  for (int j = 0; j < width; ++j) {
    const float value = values[j];
    if (!(value >= -bound && value <= bound)) gradient[j] = 0;
  }
  store_floats<width>(gradient, dx + i);
}

// The bound as the elements can hold it, made on the host, where from_float() is not.
template <typename T>
float rounded_bound(float bound) {
  return static_cast<float>(T(bound));
}

}  // namespace

void clamp(const BoundArgs& args) {
  const auto& [bound, x, out] = args;
  const std::int64_t count = x.size();
  with_float_type(x.dtype(), [&]<typename T>(T) {
    const T* const from = x.device_data<T>();
    T* const to = out.device_data<T>();
    const bool wide = count % kWide<T> == 0 && are_wide({from, to});
    with_width<T>(wide, [&]<int width>(std::integral_constant<int, width>) {
      launch(threads_for(divide_up(count, width)), clamp_elements<width, T>, from, rounded_bound<T>(bound),
             to, count);
    });
  });
}

void clamp_backward(const BoundBackwardArgs& args) {
  const auto& [bound, x, dout, dx] = args;
  const std::int64_t count = x.size();
  with_float_type(x.dtype(), [&]<typename T>(T) {
    const T *const from = x.device_data<T>(), *const gradient = dout.device_data<T>();
    T* const to = dx.device_data<T>();
    const bool wide = count % kWide<T> == 0 && are_wide({from, gradient, to});
    with_width<T>(wide, [&]<int width>(std::integral_constant<int, width>) {
      launch(threads_for(divide_up(count, width)), clamp_gradients<width, T>, from, gradient,
             rounded_bound<T>(bound), to, count);
    });
  });
}

}  // namespace switchyard::gpu

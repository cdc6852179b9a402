// A warp takes a row.
#include "kernels/cuda/portable.h"
#include "kernels/pointwise/kernels.h"

namespace switchyard::gpu {
namespace {

constexpr int kWarps = 4;

template <typename T>
GPU_KERNEL round_rows(const T* x, std::int64_t rows, std::int64_t width, float bound, T* out) {
  const std::int64_t row = block_index() * kWarps + thread_index() / kWarp;
  if (row >= rows) return;
  const T* const from = x + row * width;
  T* const to = out + row * width;
  const int lane = thread_index() % kWarp;
  float largest = bound;
  if (bound == 0) {
    for (std::int64_t i = lane; i < width; i += kWarp) {
      const float size = fabsf(to_float(from[i]));
      largest = size > largest ? size : largest;
    }
    largest = warp_max(largest);
  }
  const float scale = largest / kLargestE5m2;
  for (std::int64_t i = lane; i < width; i += kWarp) {
    const float value = to_float(from[i]);
    to[i] = from_float<T>(scale == 0 ? value : scale * nearest_e5m2(value / scale));
  }
}

}  // namespace

void round_to_e5m2(const RoundToE5m2Args& args) {
  with_float_type(args.x.dtype(), [&]<typename T>(T) {
    launch({.blocks = divide_up(args.x.dim(0), kWarps), .threads = kWarps * kWarp}, round_rows<T>,
           args.x.device_data<T>(), args.x.dim(0), args.x.dim(1), args.bound, args.out.device_data<T>());
  });
}

}  // namespace switchyard::gpu

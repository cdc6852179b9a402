#include "kernels/attention/kernels.h"
#include "kernels/cuda/portable.h"
#include "kernels/cuda/wide.h"

namespace switchyard::gpu {
namespace {

constexpr int kThreads = 256;

// A block takes a head.
GPU_KERNEL largest_of_heads(const float* top, std::int64_t batch, std::int64_t heads, std::int64_t length,
                            float* largest) {
  GPU_SHARED(float, of_warps, kThreads / kWarp);
  const std::int64_t head = block_index();
  float most = -INFINITY;
  for (std::int64_t i = thread_index(); i < batch * length; i += kThreads) {
    const float score = top[(i / length * heads + head) * length + i % length];
    most = score > most ? score : most;
  }
  most = warp_max(most);
  if (thread_index() % kWarp == 0) of_warps[thread_index() / kWarp] = most;
  barrier();
  if (thread_index() != 0) return;
  for (int i = 1; i < kThreads / kWarp; ++i) most = of_warps[i] > most ? of_warps[i] : most;
  largest[head] = most;
}

template <typename T>
GPU_KERNEL scale_elements_by_column(T* x, std::int64_t count, std::int64_t first, const float* factors,
                                    std::int64_t columns) {
  const std::int64_t i = thread_of_grid();
  if (i < count) x[i] = from_float<T>(to_float(x[i]) * factors[(first + i) % columns]);
}

}  // namespace

void largest_scores(const LargestScoresArgs& args) {
  const TensorView& top = args.top;
  launch({.blocks = top.dim(1), .threads = kThreads}, largest_of_heads, top.device_data<float>(), top.dim(0),
         top.dim(1), top.dim(2), args.largest.device_data<float>());
}

void scale_columns(const ScaleColumnsArgs& args) {
  with_float_type(args.x.dtype(), [&]<typename T>(T) {
    launch(threads_for(args.x.size()), scale_elements_by_column<T>, args.x.device_data<T>(), args.x.size(),
           args.first, args.factors.device_data<float>(), args.factors.size());
  });
}

}  // namespace switchyard::gpu

#include "kernels/attention/kernels.h"
#include "kernels/cuda/portable.h"
#include "kernels/cuda/workspace.h"

namespace switchyard::gpu {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * kWarp;

struct Sizes {
  std::int64_t batch, length, heads, width;
};

// A warp takes a query of a head.
template <typename T>
GPU_KERNEL correct_rows(Sizes s, const float* sinks, T* out, float* lse) {
  const std::int64_t row = block_index() * kWarps + thread_index() / kWarp;  // [B,S,N]
  if (row >= s.batch * s.length * s.heads) return;
  const std::int64_t head = row % s.heads, at = row / s.heads % s.length, batch = row / s.heads / s.length;
  float& sum = lse[(batch * s.heads + head) * s.length + at];
  const float before = sum, sink = sinks[head];
  warp_barrier();             // all lanes have read it
  if (before == -INFINITY) {  // no keys: the output stays 0
    if (thread_index() % kWarp == 0) sum = sink;
    return;
  }
  const float difference = sink - before;
  if (thread_index() % kWarp == 0)
    sum = difference > 0 ? sink + log1pf(expf(-difference)) : before + log1pf(expf(difference));
  const float factor = 1 / (1 + expf(difference));
  for (std::int64_t d = thread_index() % kWarp; d < s.width; d += kWarp)
    out[row * s.width + d] = from_float<T>(to_float(out[row * s.width + d]) * factor);
}

// products[row]: the part of a query of a head in its sink's gradient.
template <typename T>
GPU_KERNEL sink_products(Sizes s, const float* sinks, const T* out, const T* dout, const float* lse,
                         float* products) {
  const std::int64_t row = block_index() * kWarps + thread_index() / kWarp;
  if (row >= s.batch * s.length * s.heads) return;
  const std::int64_t head = row % s.heads, at = row / s.heads % s.length, batch = row / s.heads / s.length;
  float sum = 0;
  for (std::int64_t d = thread_index() % kWarp; d < s.width; d += kWarp)
    sum += to_float(out[row * s.width + d]) * to_float(dout[row * s.width + d]);
  sum = warp_sum(sum);
  if (thread_index() % kWarp == 0)
    products[row] = expf(sinks[head] - lse[(batch * s.heads + head) * s.length + at]) * sum;
}

// A block takes a head.
GPU_KERNEL sum_products(const float* products, std::int64_t tokens, std::int64_t heads, float* dsinks) {
  GPU_SHARED(float, scratch, kWarps);
  float sum = 0;
  for (std::int64_t t = thread_index(); t < tokens; t += kThreads) sum += products[t * heads + block_index()];
  sum = block_sum(sum, scratch);
  if (thread_index() == 0) dsinks[block_index()] = -sum;
}

Sizes sizes_of(const TensorView& out) {
  return {out.dim(0), out.dim(1), out.dim(2), out.dim(3)};
}

Launch of_rows(const Sizes& s) {
  return {.blocks = divide_up(s.batch * s.length * s.heads, kWarps), .threads = kThreads};
}

}  // namespace

void apply_sinks(const ApplySinksArgs& args) {
  const Sizes s = sizes_of(args.out);
  with_float_type(args.out.dtype(), [&]<typename T>(T) {
    launch(of_rows(s), correct_rows<T>, s, args.sinks.device_data<float>(), args.out.device_data<T>(),
           args.lse.device_data<float>());
  });
}

void sink_gradients(const SinkGradientsArgs& args) {
  const Sizes s = sizes_of(args.out);
  const std::int64_t tokens = s.batch * s.length;
  const Workspace products(args.out, static_cast<std::size_t>(tokens * s.heads) * sizeof(float));
  with_float_type(args.out.dtype(), [&]<typename T>(T) {
    launch(of_rows(s), sink_products<T>, s, args.sinks.device_data<float>(), args.out.device_data<T>(),
           args.dout.device_data<T>(), args.lse.device_data<float>(), products.data<float>());
  });
  launch({.blocks = s.heads, .threads = kThreads}, sum_products, products.data<float>(), tokens, s.heads,
         args.dsinks.device_data<float>());
}

}  // namespace switchyard::gpu

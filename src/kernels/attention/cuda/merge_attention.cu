#include "kernels/attention/kernels.h"
#include "kernels/cuda/portable.h"

namespace switchyard::gpu {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * kWarp;

struct Sizes {
  std::int64_t batch, length, heads, width;
};

// A warp takes a query of a head.
template <typename T>
GPU_KERNEL merge_rows(Sizes s, T* out, const T* other, float* lse, const float* other_lse) {
  const std::int64_t row = block_index() * kWarps + thread_index() / kWarp;  // [B,S,N]
  if (row >= s.batch * s.length * s.heads) return;
  const std::int64_t head = row % s.heads, token = row / s.heads,
                     at = (token / s.length * s.heads + head) * s.length + token % s.length;
  const float first = lse[at], second = other_lse[at], larger = first > second ? first : second;
  warp_barrier();                   // all lanes have read them
  if (larger == -INFINITY) return;  // neither has keys
  const float of_first = expf(first - larger), of_second = expf(second - larger), sum = of_first + of_second;
  if (thread_index() % kWarp == 0) lse[at] = larger + logf(sum);
  for (std::int64_t d = row * s.width + thread_index() % kWarp; d < (row + 1) * s.width; d += kWarp)
    out[d] = from_float<T>((to_float(out[d]) * of_first + to_float(other[d]) * of_second) / sum);
}

}  // namespace

void merge_attention(const MergeAttentionArgs& args) {
  const Sizes s{args.out.dim(0), args.out.dim(1), args.out.dim(2), args.out.dim(3)};
  with_float_type(args.out.dtype(), [&]<typename T>(T) {
    launch({.blocks = divide_up(s.batch * s.length * s.heads, kWarps), .threads = kThreads}, merge_rows<T>, s,
           args.out.device_data<T>(), args.other_out.device_data<T>(), args.lse.device_data<float>(),
           args.other_lse.device_data<float>());
  });
}

}  // namespace switchyard::gpu

// Spreads routing weights over all experts: a thread takes one element of the result.
#include "kernels/cuda/portable.h"
#include "kernels/moe/kernels.h"

namespace switchyard::gpu {
namespace {

constexpr int kDenseWeightsThreads = 256;

GPU_KERNEL spread_weights(const std::int32_t* ids, const float* weights, std::int64_t tokens,
                          std::int64_t per_token, std::int64_t count, float* out) {
  const std::int64_t i = block_index() * kDenseWeightsThreads + thread_index();
  if (i >= count) return;
  const std::int64_t e = i / tokens, t = i % tokens;
  float sum = 0;
  for (std::int64_t k = t * per_token; k < (t + 1) * per_token; ++k) sum += ids[k] == e ? weights[k] : 0.0f;
  out[i] = sum;
}

GPU_KERNEL collect_weights(const std::int32_t* ids, const float* dout, std::int64_t tokens,
                           std::int64_t per_token, float* dweights) {
  const std::int64_t i = block_index() * kDenseWeightsThreads + thread_index();
  if (i < tokens * per_token) dweights[i] = ids[i] < 0 ? 0.0f : dout[ids[i] * tokens + i / per_token];
}

}  // namespace

void dense_weights(const DenseWeightsArgs& args) {
  launch({.blocks = divide_up(args.out.size(), kDenseWeightsThreads), .threads = kDenseWeightsThreads},
         spread_weights, args.ids.device_data<std::int32_t>(), args.weights.device_data<float>(),
         args.out.dim(1), args.ids.dim(1), args.out.size(), args.out.device_data<float>());
}

void dense_weights_backward(const DenseWeightsBackwardArgs& args) {
  launch({.blocks = divide_up(args.ids.size(), kDenseWeightsThreads), .threads = kDenseWeightsThreads},
         collect_weights, args.ids.device_data<std::int32_t>(), args.dout.device_data<float>(),
         args.ids.dim(0), args.ids.dim(1), args.dweights.device_data<float>());
}

}  // namespace switchyard::gpu

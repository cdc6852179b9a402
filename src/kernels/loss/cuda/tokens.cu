// Small moves by token: routing weights with a place for every expert, and the last tokens of rows.
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/portable.h"
#include "kernels/loss/last_tokens.h"
#include "kernels/moe/dense_weights.h"

namespace switchyard::gpu {
namespace {

constexpr int kThreads = 256;

GPU_KERNEL spread_weights(const std::int32_t* ids, const float* weights, std::int64_t tokens,
                          std::int64_t slots, std::int64_t count, float* out) {
  const std::int64_t i = block_index() * kThreads + thread_index();
  if (i >= count) return;
  const std::int64_t e = i / tokens, t = i % tokens;
  float sum = 0;
  for (std::int64_t k = t * slots; k < (t + 1) * slots; ++k) sum += ids[k] == e ? weights[k] : 0.0f;
  out[i] = sum;
}

GPU_KERNEL collect_weights(const std::int32_t* ids, const float* dout, std::int64_t tokens,
                           std::int64_t slots, float* dweights) {
  const std::int64_t i = block_index() * kThreads + thread_index();
  if (i < tokens * slots) dweights[i] = ids[i] < 0 ? 0.0f : dout[ids[i] * tokens + i / slots];
}

// A block takes a row; `bytes`: of a token.
GPU_KERNEL copy_last(const unsigned char* x, const std::int32_t* segments, std::int64_t length,
                     std::int64_t bytes, unsigned char* out) {
  GPU_SHARED(std::int64_t, last, 1);
  const std::int64_t row = block_index();
  if (thread_index() == 0) {
    std::int64_t tokens = 0;
    while (tokens < length && segments[row * length + tokens] != 0) ++tokens;
    *last = row * length + (tokens > 0 ? tokens - 1 : 0);
  }
  barrier();
  for (std::int64_t i = thread_index(); i < bytes; i += kThreads) out[row * bytes + i] = x[*last * bytes + i];
}

}  // namespace

void dense_weights(const DenseWeightsArgs& args) {
  launch({.blocks = divide_up(args.out.size(), kThreads), .threads = kThreads}, spread_weights,
         args.ids.device_data<std::int32_t>(), args.weights.device_data<float>(), args.out.dim(1),
         args.ids.dim(1), args.out.size(), args.out.device_data<float>());
}

void dense_weights_backward(const DenseWeightsBackwardArgs& args) {
  launch({.blocks = divide_up(args.ids.size(), kThreads), .threads = kThreads}, collect_weights,
         args.ids.device_data<std::int32_t>(), args.dout.device_data<float>(), args.ids.dim(0),
         args.ids.dim(1), args.dweights.device_data<float>());
}

void last_tokens(const LastTokensArgs& args) {
  const auto bytes = args.x.dim(2) * static_cast<std::int64_t>(size_of(args.x.dtype()));
  launch({.blocks = args.x.dim(0), .threads = kThreads}, copy_last,
         reinterpret_cast<const unsigned char*>(args.x.device_address()),
         args.segments.device_data<std::int32_t>(), args.x.dim(1), bytes,
         reinterpret_cast<unsigned char*>(args.out.device_address()));
}

}  // namespace switchyard::gpu

// A block takes all experts. Loads are sums of integers below 2^53, so their mean is the host's in any order.
#include "kernels/cuda/portable.h"
#include "kernels/cuda/wide.h"
#include "kernels/moe/kernels.h"

namespace switchyard::gpu {
namespace {

constexpr int kRouterBiasThreads = 256;

GPU_FUNCTION double load_of(const std::int32_t* counts, std::int64_t passes, std::int64_t experts,
                            std::int64_t expert) {
  double load = 0;
  for (std::int64_t p = 0; p < passes; ++p) load += static_cast<double>(counts[p * experts + expert]);
  return load;
}

GPU_KERNEL update_bias(const std::int32_t* counts, std::int64_t passes, std::int64_t experts,
                       const float* is_good, float* bias, std::int64_t first, std::int64_t biases,
                       float rate) {
  GPU_SHARED(double, scratch, kRouterBiasThreads / kWarp);
  if (*is_good == 0) return;
  double sum = 0;
  for (std::int64_t e = thread_index(); e < experts; e += kRouterBiasThreads)
    sum += load_of(counts, passes, experts, e);
  const double mean = block_sum(sum, scratch) / static_cast<double>(experts);
  for (std::int64_t i = thread_index(); i < biases; i += kRouterBiasThreads) {
    const double load = load_of(counts, passes, experts, first + i);
    bias[i] += load < mean ? rate : load > mean ? -rate : 0.0f;
  }
}

}  // namespace

void update_router_bias(const RouterBiasArgs& args) {
  launch({.blocks = 1, .threads = kRouterBiasThreads}, update_bias, args.counts.device_data<std::int32_t>(),
         args.counts.dim(0), args.counts.dim(1), args.is_good.device_data<float>(),
         args.bias.device_data<float>(), args.first, args.bias.size(), static_cast<float>(args.rate));
}

}  // namespace switchyard::gpu

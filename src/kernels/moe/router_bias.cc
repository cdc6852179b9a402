#include "kernels/moe/router_bias.h"

#include <numeric>
#include <utility>
#include <vector>

#include "kernels/moe/kernels.h"
#include "kernels/registry/kernel.h"

namespace switchyard {
namespace {

void update_bias(ThreadPool&, const RouterBiasArgs& args) {
  if (*args.is_good.kernel_data<float>() == 0) return;
  const auto experts = static_cast<std::size_t>(args.counts.dim(1)),
             first = static_cast<std::size_t>(args.first);
  std::vector<double> loads(experts, 0.0);
  for (std::int64_t p = 0; p < args.counts.dim(0); ++p) {
    const std::span<std::int32_t> counts = row_of<std::int32_t>(args.counts, p);
    for (std::size_t e = 0; e < experts; ++e) loads[e] += counts[e];
  }
  const double mean = std::accumulate(loads.begin(), loads.end(), 0.0) / static_cast<double>(experts);
  float* const bias = args.bias.kernel_data<float>();
  for (std::size_t i = 0; std::cmp_less(i, args.bias.size()); ++i) {
    const double load = loads[first + i];
    bias[i] += static_cast<float>(load < mean ? args.rate : load > mean ? -args.rate : 0.0);
  }
}

Work bias_work(const RouterBiasArgs& args) {
  return {.dtype = DType::f32,
          .flops = static_cast<double>(args.counts.size() + 2 * args.bias.size()),
          .bytes = static_cast<double>(args.counts.bytes() + 2 * args.bias.bytes())};
}

constexpr Implementation<RouterBiasArgs> kRouterBiasRows[] = {{"cuda", Gpu::any, gpu::update_router_bias},
                                                              {"portable", Isa::ref, update_bias}};
constexpr Kernel<RouterBiasArgs> kRouterBias{"update_router_bias", bias_work, &RouterBiasArgs::bias,
                                             kRouterBiasRows};

}  // namespace

void update_router_bias(ThreadPool& pool, const RouterBiasArgs& args) {
  const char* const op = "update_router_bias";
  const std::int64_t biases = args.bias.size();
  CHECK(args.counts.rank() == 2 && args.first >= 0 && args.first + biases <= args.counts.dim(1),
        "[{}] counts {} for {} experts from {} on", op, to_string(args.counts.shape()), biases, args.first);
  check_operand(op, "bias", args.bias, DType::f32, {biases});
  check_operand(op, "counts", args.counts, DType::i32, {args.counts.dim(0), args.counts.dim(1)});
  check_operand(op, "is_good", args.is_good, DType::f32, {1});
  run(pool, kRouterBias, args);
}

}  // namespace switchyard

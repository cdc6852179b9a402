#include "kernels/moe/router_bias.h"

#include <numeric>
#include <vector>

#include "kernels/moe/kernels.h"
#include "kernels/registry/kernel.h"

namespace switchyard {
namespace {

void update_bias(ThreadPool&, const RouterBiasArgs& args) {
  if (*args.goes.kernel_data<float>() == 0) return;
  const auto experts = static_cast<std::size_t>(args.bias.size());
  std::vector<double> loads(experts, 0.0);
  for (std::int64_t p = 0; p < args.counts.dim(0); ++p) {
    const std::span<std::int32_t> counts = row_of<std::int32_t>(args.counts, p);
    for (std::size_t e = 0; e < experts; ++e) loads[e] += counts[e];
  }
  const double mean = std::accumulate(loads.begin(), loads.end(), 0.0) / static_cast<double>(experts);
  float* const bias = args.bias.kernel_data<float>();
  for (std::size_t e = 0; e < experts; ++e)
    bias[e] += static_cast<float>(loads[e] < mean ? args.rate : loads[e] > mean ? -args.rate : 0.0);
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
  const std::int64_t experts = args.bias.size();
  CHECK(args.counts.rank() == 2 && experts > 0, "[{}] counts {} for {} experts", op,
        to_string(args.counts.shape()), experts);
  check_operand(op, "bias", args.bias, DType::f32, {experts});
  check_operand(op, "counts", args.counts, DType::i32, {args.counts.dim(0), experts});
  check_operand(op, "goes", args.goes, DType::f32, {1});
  run(pool, kRouterBias, args);
}

}  // namespace switchyard

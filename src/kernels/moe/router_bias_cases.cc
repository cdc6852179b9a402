// The router's bias by its experts' loads: the reference's bits.
#include <fmt/format.h>

#include <random>
#include <utility>

#include "kernels/moe/router_bias.h"
#include "kernels/testing/cases.h"

namespace switchyard::selftest {
namespace {

// Loads around their mean, some equal to it.
std::vector<std::int32_t> random_loads(std::int64_t passes, std::int64_t experts, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::int32_t> loads;
  for (std::int64_t i = 0; i < passes * experts; ++i)
    loads.push_back(i % experts % 4 == 3 ? 2 : std::uniform_int_distribution<std::int32_t>(0, 4)(random));
  return loads;
}

std::vector<Case> router_bias_cases(std::uint32_t seed) {
  std::vector<Case> cases;
  for (const std::int64_t experts : {1, 4, 64, 300}) {
    for (const std::int64_t passes : {1, 3}) {
      for (const float is_good : {1.0f, 0.0f}) {
        Draw draw(++seed * 2);
        const std::int64_t first = passes == 3 ? experts / 2 : 0;  // of several ranks, each moves a share
        PoisonedArray good(DType::f32, 1);
        good.set(0, is_good);
        cases.push_back({DType::f32,
                         fmt::format("{} experts from {} on, {} passes, {}, seed {}", experts, first, passes,
                                     is_good == 0 ? "a bad step" : "a good step", draw.seed()),
                         {i32_array(random_loads(passes, experts, seed)), std::move(good)},
                         {{"bias", draw.normal(DType::f32, experts - first)}},
                         [=](ThreadPool& pool, const Arrays& in, Arrays& out) {
                           update_router_bias(pool, {.counts = in[0].view({passes, experts}),
                                                     .is_good = in[1].view(),
                                                     .bias = out[0].view(),
                                                     .first = first,
                                                     .rate = 0.001});
                         },
                         [=](const Arrays& in, Arrays& out) {
                           if (is_good == 0) return;
                           std::vector<double> loads(static_cast<std::size_t>(experts), 0.0);
                           double sum = 0;
                           for (std::int64_t i = 0; i < passes * experts; ++i) {
                             loads[static_cast<std::size_t>(i % experts)] += in[0].value(i);
                             sum += in[0].value(i);
                           }
                           for (std::int64_t e = first; e < experts; ++e) {
                             const double over =
                                 loads[static_cast<std::size_t>(e)] * static_cast<double>(experts) - sum;
                             if (over != 0)
                               out[0].set(e - first, out[0].at(e - first) + (over < 0 ? 0.001f : -0.001f));
                           }
                         }});
      }
    }
  }
  return cases;
}

}  // namespace

std::vector<KernelCases> router_bias_kernels() {
  return {{"update_router_bias", "update_router_bias", router_bias_cases}};
}

}  // namespace switchyard::selftest

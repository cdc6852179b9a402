// Choice of experts. The twin sorts, has weights in double, and gradients by differences.
#include "kernels/moe/reference/route_cases.h"

#include <fmt/format.h>

#include "kernels/moe/reference/route_reference.h"
#include "kernels/moe/route.h"
#include "kernels/testing/cases.h"

namespace switchyard::selftest {
namespace {

struct RouteShape {
  reference::NamedRule named;
  std::int64_t tokens, experts, slots;
  TensorView logits(const PoisonedArray& x) const { return x.view({1, tokens, experts}); }
  TensorView chosen(const PoisonedArray& x) const { return x.view({1, tokens, slots}); }
};

std::vector<double> doubles_of_row(const PoisonedArray& x, std::int64_t row, std::int64_t width) {
  std::vector<double> result;
  for (std::int64_t i = 0; i < width; ++i) result.push_back(static_cast<double>(x.at(row * width + i)));
  return result;
}

std::vector<double> bias_of(const RouteShape& s, const PoisonedArray& bias) {
  return s.named.bias ? doubles_of_row(bias, 0, s.experts) : std::vector<double>();
}

// make(shape, draw) gives a case without its name.
template <typename MakeCase>
std::vector<Case> route_family(std::uint32_t seed, const MakeCase& make) {
  std::vector<Case> cases;
  for (const auto& named : reference::routing_rules()) {
    for (const std::int64_t tokens : {0, 1, 130}) {
      for (const auto& [experts, slots] : {std::pair<std::int64_t, std::int64_t>{8, 1}, {64, 6}}) {
        Draw draw(++seed * 4);
        const std::string what = fmt::format("{}: {} of {} experts for {} tokens, seed {}", named.name, slots,
                                             experts, tokens, draw.seed());
        cases.push_back(make(RouteShape{named, tokens, experts, slots}, draw));
        cases.back().what = what;
      }
    }
  }
  return cases;
}

void run_route(ThreadPool& pool, const RouteShape& s, const PoisonedArray& logits, const PoisonedArray& bias,
               const PoisonedArray& ids, const PoisonedArray& weights) {
  route(pool, {.rule = s.named.rule,
               .logits = s.logits(logits),
               .bias = s.named.bias ? bias.view() : TensorView(),
               .choices = TensorView(),
               .random = {},
               .ids = s.chosen(ids),
               .weights = s.chosen(weights)});
}

std::vector<Case> route_cases(std::uint32_t seed) {
  return route_family(seed, [](const RouteShape& s, Draw& draw) {
    return Case{DType::f32,
                "",
                {draw.normal(DType::f32, s.tokens * s.experts), draw.normal(DType::f32, s.experts, 0.2f)},
                {{"ids", PoisonedArray(DType::i32, s.tokens * s.slots)},
                 {"weights", PoisonedArray(DType::f32, s.tokens * s.slots), {1e-5, 1e-7}}},
                [s](ThreadPool& pool, const Arrays& in, Arrays& out) {
                  run_route(pool, s, in[0], in[1], out[0], out[1]);
                },
                [s](const Arrays& in, Arrays& out) {
                  const auto experts = static_cast<std::size_t>(s.experts);
                  auto* const ids = static_cast<std::int32_t*>(out[0].data());
                  for (std::int64_t t = 0; t < s.tokens; ++t) {
                    const auto chosen =
                        reference::chosen_ids(s.named.rule, {in[0].floats() + t * s.experts, experts},
                                              {in[1].floats(), s.named.bias ? experts : 0}, s.slots);
                    const auto weights = reference::chosen_weights(
                        s.named.rule, doubles_of_row(in[0], t, s.experts), bias_of(s, in[1]), chosen);
                    std::copy(chosen.begin(), chosen.end(), ids + t * s.slots);
                    for (std::int64_t k = 0; k < s.slots; ++k)
                      out[1].set(t * s.slots + k, static_cast<float>(weights[static_cast<std::size_t>(k)]));
                  }
                }};
  });
}

// The choice that is gone back through is the kernel's own.
std::vector<Case> route_backward_cases(std::uint32_t seed) {
  return route_family(seed, [](const RouteShape& s, Draw& draw) {
    Arrays inputs{draw.normal(DType::f32, s.tokens * s.experts), draw.normal(DType::f32, s.experts, 0.2f),
                  draw.normal(DType::f32, s.tokens * s.slots), PoisonedArray(DType::i32, s.tokens * s.slots),
                  PoisonedArray(DType::f32, s.tokens * s.slots)};
    ThreadPool alone(1);
    run_route(alone, s, inputs[0], inputs[1], inputs[3], inputs[4]);
    const double scale = 1e-5 * static_cast<double>(s.named.rule.scaling);
    Case c{
        DType::f32,
        "",
        std::move(inputs),
        {{"dlogits", PoisonedArray(DType::f32, s.tokens * s.experts), {1e-4, scale}}},
        [s](ThreadPool& pool, const Arrays& in, Arrays& out) {
          route_backward(pool, {.rule = s.named.rule,
                                .logits = s.logits(in[0]),
                                .bias = s.named.bias ? in[1].view() : TensorView(),
                                .ids = s.chosen(in[3]),
                                .weights = s.chosen(in[4]),
                                .dweights = s.chosen(in[2]),
                                .dlogits = s.logits(out[0]),
                                .dbias = out.size() > 1 ? out[1].view() : TensorView()});
        },
        [s](const Arrays& in, Arrays& out) {
          auto bias = bias_of(s, in[1]);
          std::vector<double> bias_sum(bias.size());
          const auto* const ids = static_cast<const std::int32_t*>(in[3].data());
          for (std::int64_t t = 0; t < s.tokens; ++t) {
            auto logits = doubles_of_row(in[0], t, s.experts);
            const auto d = doubles_of_row(in[2], t, s.slots);
            const std::span<const std::int32_t> chosen(ids + t * s.slots, static_cast<std::size_t>(s.slots));
            const auto gradient = reference::weight_gradient(s.named.rule, logits, bias, logits, chosen, d);
            for (std::int64_t e = 0; e < s.experts; ++e)
              out[0].set(t * s.experts + e, static_cast<float>(gradient[static_cast<std::size_t>(e)]));
            const auto of_bias = reference::weight_gradient(s.named.rule, logits, bias, bias, chosen, d);
            for (std::size_t e = 0; e < of_bias.size(); ++e) bias_sum[e] += of_bias[e];
          }
          for (std::size_t e = 0; e < bias_sum.size() && out.size() > 1; ++e)
            out[1].set(static_cast<std::int64_t>(e), static_cast<float>(bias_sum[e]));
        }};
    if (s.named.bias) c.outputs.push_back({"dbias", PoisonedArray(DType::f32, s.experts), {1e-4, 1e-3}});
    return c;
  });
}

}  // namespace

std::vector<KernelCases> route_kernels() {
  return {{"route", nullptr, route_cases}, {"route_backward", nullptr, route_backward_cases}};
}

}  // namespace switchyard::selftest

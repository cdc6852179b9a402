// Choice of experts. The reference sorts, has weights in double, and gradients by differences.
#include <fmt/format.h>

#include "kernels/moe/reference/route_reference.h"
#include "kernels/moe/route.h"
#include "kernels/testing/cases.h"

namespace switchyard::selftest {
namespace {

struct NamedRule {
  const char* name;
  RoutingRule rule;
  bool bias = false;
};

// The rules of the models that there are, for a number of experts that 4 divides, and drawn ids.
std::vector<NamedRule> routing_rules() {
  const RoutingRule softmax{.score = RouterScore::softmax, .softmax_over_selected = false};
  std::vector<NamedRule> all{{"softmax over selected", {}}, {"softmax", softmax}, {"normalised", softmax}};
  all.back().rule.normalise = true;
  all.push_back({"scaled, in groups", softmax});
  all.back().rule.scaling = 16;
  all.back().rule.groups = 4;
  all.back().rule.kept_groups = 2;
  RoutingRule sigmoid{.score = RouterScore::sigmoid,
                      .softmax_over_selected = false,
                      .normalise = true,
                      .normalise_epsilon = 1e-20f,
                      .scaling = 2.5f};
  all.push_back({"sigmoid with bias", sigmoid, true});
  sigmoid.groups = 4;
  sigmoid.kept_groups = 2;
  all.push_back({"sigmoid with bias, in groups", sigmoid, true});
  sigmoid.weights_include_bias = true;
  all.push_back({"weights of biased sigmoid", sigmoid, true});
  sigmoid.weights_include_bias = false;
  sigmoid.score = RouterScore::sqrt_softplus;
  all.push_back({"square root of softplus with bias, in groups", sigmoid, true});
  const RoutingRule plain_sigmoid{.score = RouterScore::sigmoid, .softmax_over_selected = false};
  all.push_back({"sigmoid of the largest logits", plain_sigmoid});
  all.back().rule.choose_by_logit = true;
  all.push_back({"drawn", plain_sigmoid, true});
  all.back().rule.random = true;
  all.push_back({"softmax, in groups by two best", softmax});
  all.back().rule.groups = 4;
  all.back().rule.kept_groups = 2;
  all.back().rule.by_two_best = true;
  return all;
}

struct RouteShape {
  NamedRule named;
  std::int64_t tokens, experts, per_token;
  bool given;  // choices of two tokens of three

  std::int64_t batch() const { return tokens % 2 == 0 ? 2 : 1; }
  std::int64_t length() const { return tokens / batch(); }
  TensorView logits(const PoisonedArray& x) const { return x.view({batch(), length(), experts}); }
  TensorView chosen(const PoisonedArray& x) const { return x.view({batch(), length(), per_token}); }
  // Where choices are given, every fifth token is padding.
  bool is_padding(std::int64_t t) const { return given && t % 5 == 2; }
  PoisonedArray segments() const {
    std::vector<std::int32_t> all;
    for (std::int64_t t = 0; t < tokens; ++t)
      all.push_back(is_padding(t) ? 0 : 1 + static_cast<std::int32_t>(t % 2));
    return i32_array(all);
  }
  PoisonedArray choices() const {
    std::vector<std::int32_t> ids;
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (std::int64_t k = 0; k < per_token; ++k)
        ids.push_back(t % 3 == 0 ? -1 : static_cast<std::int32_t>((t * per_token + k) * 5 % experts));
      if (t % 12 == 1) ids.back() = kUnusedChoice;
    }
    return i32_array(ids);
  }
};

constexpr std::int64_t kFirstRow = 7, kFirstColumn = 90,
                       kColumns = 200;  // place of the tokens in their batch

// make(shape, draw) gives a case without its name.
template <typename MakeCase>
std::vector<Case> route_family(std::uint32_t seed, const MakeCase& make) {
  std::vector<Case> cases;
  for (const NamedRule& named : routing_rules()) {
    for (const auto& [tokens, given] :
         {std::pair<std::int64_t, bool>{0, false}, {1, false}, {130, false}, {130, true}}) {
      for (const auto& [experts, per_token] : {std::pair<std::int64_t, std::int64_t>{8, 1}, {64, 6}}) {
        Draw draw(++seed * 4);
        const std::string what =
            fmt::format("{}{}: {} of {} experts for {} tokens, seed {}", named.name,
                        given ? ", some given" : "", per_token, experts, tokens, draw.seed());
        cases.push_back(make(RouteShape{named, tokens, experts, per_token, given}, draw));
        cases.back().what = what;
      }
    }
  }
  return cases;
}

// Logits, bias, choices and segments.
Arrays route_inputs(const RouteShape& s, Draw& draw) {
  Arrays in;
  in.push_back(draw.normal(DType::f32, s.tokens * s.experts));
  in.push_back(draw.normal(DType::f32, s.experts, 0.2f));
  in.push_back(s.choices());
  in.push_back(s.segments());
  return in;
}

void run_route(ThreadPool& pool, const RouteShape& s, const Arrays& in, const PoisonedArray& ids,
               const PoisonedArray& weights) {
  route(pool, {.rule = s.named.rule,
               .logits = s.logits(in[0]),
               .bias = s.named.bias ? in[1].view() : TensorView(),
               .choices = s.given ? s.chosen(in[2]) : TensorView(),
               .random = {rng_key(5), kFirstRow, kFirstColumn, kColumns},
               .segments = s.given ? in[3].view({s.batch(), s.length()}) : TensorView(),
               .ids = s.chosen(ids),
               .weights = s.chosen(weights)});
}

std::vector<double> doubles_of_row(const PoisonedArray& x, std::int64_t row, std::int64_t width) {
  std::vector<double> result;
  for (std::int64_t i = 0; i < width; ++i) result.push_back(static_cast<double>(x.at(row * width + i)));
  return result;
}

std::vector<double> bias_of(const RouteShape& s, const PoisonedArray& bias) {
  return s.named.bias ? doubles_of_row(bias, 0, s.experts) : std::vector<double>();
}

std::vector<std::int32_t> ids_of(const RouteShape& s, const Arrays& in, std::int64_t t) {
  const auto* const given = static_cast<const std::int32_t*>(in[2].data()) + t * s.per_token;
  std::vector<std::int32_t> ids;
  if (s.is_padding(t)) {
    ids.assign(static_cast<std::size_t>(s.per_token), -1);
  } else if (s.given && given[0] != -1) {
    for (std::int64_t k = 0; k < s.per_token; ++k) ids.push_back(given[k] == kUnusedChoice ? -1 : given[k]);
  } else if (s.named.rule.random) {
    const std::int64_t place = (kFirstRow + t / s.length()) * kColumns + kFirstColumn + t % s.length();
    for (std::int64_t k = 0; k < s.per_token; ++k)
      ids.push_back(rng_randint(rng_key(5), static_cast<std::uint64_t>(place * s.per_token + k), 0,
                                static_cast<std::int32_t>(s.experts)));
  } else {
    const auto experts = static_cast<std::size_t>(s.experts);
    ids = reference::chosen_ids(s.named.rule, {in[0].floats() + t * s.experts, experts},
                                {in[1].floats(), s.named.bias ? experts : 0}, s.per_token);
  }
  return ids;
}

std::vector<Case> route_cases(std::uint32_t seed) {
  return route_family(seed, [](const RouteShape& s, Draw& draw) {
    return Case{
        DType::f32,
        "",
        route_inputs(s, draw),
        {{"ids", PoisonedArray(DType::i32, s.tokens * s.per_token)},
         {"weights", PoisonedArray(DType::f32, s.tokens * s.per_token), {1e-5, 1e-7}}},
        [s](ThreadPool& pool, const Arrays& in, Arrays& out) { run_route(pool, s, in, out[0], out[1]); },
        [s](const Arrays& in, Arrays& out) {
          auto* const ids = static_cast<std::int32_t*>(out[0].data());
          for (std::int64_t t = 0; t < s.tokens; ++t) {
            const auto chosen = ids_of(s, in, t);
            const auto weights = reference::chosen_weights(s.named.rule, doubles_of_row(in[0], t, s.experts),
                                                           bias_of(s, in[1]), chosen);
            std::copy(chosen.begin(), chosen.end(), ids + t * s.per_token);
            for (std::int64_t k = 0; k < s.per_token; ++k)
              out[1].set(t * s.per_token + k, static_cast<float>(weights[static_cast<std::size_t>(k)]));
          }
        }};
  });
}

// Gradients of the choice that the kernel made.
std::vector<Case> route_backward_cases(std::uint32_t seed) {
  return route_family(seed, [](const RouteShape& s, Draw& draw) {
    Arrays inputs = route_inputs(s, draw);
    inputs.push_back(draw.normal(DType::f32, s.tokens * s.per_token));
    inputs.emplace_back(DType::i32, s.tokens * s.per_token);
    inputs.emplace_back(DType::f32, s.tokens * s.per_token);
    ThreadPool alone(1);
    run_route(alone, s, inputs, inputs[5], inputs[6]);
    const double scale = 1e-5 * static_cast<double>(s.named.rule.scaling);
    Case c{DType::f32,
           "",
           std::move(inputs),
           {{"dlogits", PoisonedArray(DType::f32, s.tokens * s.experts), {1e-4, scale}}},
           [s](ThreadPool& pool, const Arrays& in, Arrays& out) {
             route_backward(pool, {.rule = s.named.rule,
                                   .logits = s.logits(in[0]),
                                   .bias = s.named.bias ? in[1].view() : TensorView(),
                                   .choices = s.given ? s.chosen(in[2]) : TensorView(),
                                   .ids = s.chosen(in[5]),
                                   .weights = s.chosen(in[6]),
                                   .dweights = s.chosen(in[4]),
                                   .dlogits = s.logits(out[0]),
                                   .dbias = out.size() > 1 ? out[1].view() : TensorView()});
           },
           [s](const Arrays& in, Arrays& out) {
             auto bias = bias_of(s, in[1]);
             std::vector<double> bias_sum(bias.size());
             const auto* const ids = static_cast<const std::int32_t*>(in[5].data());
             for (std::int64_t t = 0; t < s.tokens; ++t) {
               auto logits = doubles_of_row(in[0], t, s.experts);
               const auto d = doubles_of_row(in[4], t, s.per_token);
               const std::span<const std::int32_t> chosen(ids + t * s.per_token,
                                                          static_cast<std::size_t>(s.per_token));
               const auto gradient =
                   reference::weight_gradient(s.named.rule, logits, bias, logits, chosen, d);
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
  return {{"route", "route", route_cases}, {"route_backward", "route_backward", route_backward_cases}};
}

}  // namespace switchyard::selftest

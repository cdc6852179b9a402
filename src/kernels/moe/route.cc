#include "kernels/moe/route.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "core/tensor.h"
#include "kernels/moe/kernels.h"
#include "kernels/registry/kernel.h"

namespace switchyard {
namespace {

// The k largest of `values`, best first; ties go to the lower index. Insertion: k is small
// and most values are beaten.
void top_k(std::span<const float> values, std::span<std::int32_t> ids) {
  std::size_t found = 0;
  for (std::size_t e = 0; e < values.size(); ++e) {
    const auto beats = [&](std::size_t i) { return values[e] > values[static_cast<std::size_t>(ids[i])]; };
    if (found == ids.size() && !beats(found - 1)) continue;
    std::size_t i = found < ids.size() ? found++ : found - 1;
    for (; i > 0 && beats(i - 1); --i) ids[i] = ids[i - 1];
    ids[i] = static_cast<std::int32_t>(e);
  }
}

// Memory for routing one token after the other, allocated once.
struct Scratch {
  Scratch(const RoutingRule& rule, std::int64_t experts)
      : scores(static_cast<std::size_t>(experts)),
        selection(scores.size()),
        group_scores(static_cast<std::size_t>(rule.groups)),
        kept_groups(static_cast<std::size_t>(rule.groups > 1 ? rule.kept_groups : 0)) {}
  std::vector<float> scores, selection, group_scores;
  std::vector<std::int32_t> kept_groups;
};

// Experts outside the best groups become unselectable (RoutingRule::groups).
void keep_best_groups(const RoutingRule& rule, Scratch& scratch) {
  const std::span<float> scores(scratch.selection);
  const std::size_t groups = scratch.group_scores.size(), size = scores.size() / groups;
  for (std::size_t g = 0; g < groups; ++g) {
    float best = -std::numeric_limits<float>::infinity(), second = best;
    for (float s : scores.subspan(g * size, size)) {
      if (s > best)
        second = std::exchange(best, s);
      else
        second = std::max(second, s);
    }
    scratch.group_scores[g] =
        (rule.by_two_best || scores_each_alone(rule.score)) && size > 1 ? best + second : best;
  }
  top_k(scratch.group_scores, scratch.kept_groups);
  const auto& kept = scratch.kept_groups;
  for (std::size_t g = 0; g < groups; ++g) {
    if (std::find(kept.begin(), kept.end(), static_cast<std::int32_t>(g)) != kept.end()) continue;
    for (float& s : scores.subspan(g * size, size)) s = -std::numeric_limits<float>::infinity();
  }
}

float at(std::span<const float> values, std::int32_t id) {
  return values[static_cast<std::size_t>(id)];
}

// The score that is weighed of an expert, with the bias where weights hold it.
class Weighed {
 public:
  Weighed(const RoutingRule& rule, std::span<const float> scores, std::span<const float> bias, bool given)
      : scores_(scores),
        bias_(bias),
        with_bias_(!bias.empty() && (weights_have_bias(rule) || (given && rule.given_as_maxtext))) {}
  float operator()(std::int32_t id) const { return at(scores_, id) + (with_bias_ ? at(bias_, id) : 0.0f); }

 private:
  std::span<const float> scores_, bias_;
  bool with_bias_;
};

// Counts how often expert 0 enters the sum of weights for choices without an expert.
float stand_ins(const RoutingRule& rule, std::span<const std::int32_t> ids) {
  return rule.given_as_maxtext ? static_cast<float>(std::ranges::count(ids, -1)) : 0.0f;
}

float sum_to_divide_by(const RoutingRule& rule, const Weighed& weighed, std::span<const std::int32_t> ids) {
  float sum = rule.normalise_epsilon;
  for (const std::int32_t id : ids) sum += id >= 0 ? weighed(id) : 0.0f;
  const float others = stand_ins(rule, ids);
  return others > 0 ? sum + others * weighed(0) : sum;
}

// Weights of the chosen ids from the scores. With random routing they are the gate's outputs, unchanged.
void weigh(const RoutingRule& rule, const Weighed& weighed, std::span<const std::int32_t> ids,
           std::span<float> weights) {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  for (std::size_t k = 0; k < ids.size(); ++k) weights[k] = ids[k] >= 0 ? weighed(ids[k]) : kNone;
  if (rule.softmax_over_selected && !rule.random) {
    const float top = *std::max_element(weights.begin(), weights.end());
    float sum = 0;
    for (float& w : weights) sum += (w = w == kNone ? 0.0f : std::exp(w - top));
    for (float& w : weights) w = sum > 0 ? w / sum : 0.0f;
    return;
  }
  for (float& w : weights) w = w == kNone ? 0.0f : w;
  if (rule.random) return;
  if (rule.normalise) {
    const float sum = sum_to_divide_by(rule, weighed, ids);
    for (float& w : weights) w = w == 0 ? 0.0f : w / sum;
  }
  for (float& w : weights) w *= rule.scaling;
}

// d - Σ_j w_j d_j for weights of sum 1 (and, scaled alike, for others), by differences: exactly 0 where all d
// are equal, as with one choice, where the two sums would leave their rounding for a gradient.
float difference_from_mean(std::span<const float> weights, std::span<const float> d, float own) {
  float sum = 0;
  for (std::size_t j = 0; j < d.size(); ++j) sum += weights[j] * (own - d[j]);
  return sum;
}

// Gradient of `weigh` with respect to the scores, added to dscores.
void weigh_backward(const RoutingRule& rule, const Weighed& weighed, std::span<const std::int32_t> ids,
                    std::span<const float> weights, std::span<const float> dweights,
                    std::span<float> dscores) {
  auto add = [&](std::size_t k, float g) {
    if (ids[k] >= 0) dscores[static_cast<std::size_t>(ids[k])] += g;
  };
  if (rule.random) {
    for (std::size_t k = 0; k < ids.size(); ++k) add(k, dweights[k]);
  } else if (rule.softmax_over_selected) {
    for (std::size_t k = 0; k < ids.size(); ++k)
      add(k, weights[k] * difference_from_mean(weights, dweights, dweights[k]));
  } else if (rule.normalise) {
    const float sum = sum_to_divide_by(rule, weighed, ids), others = stand_ins(rule, ids);
    if (sum == 0) return;  // of scores that are all 0, and so are the weights
    const float of_others = others > 0 ? others * rule.scaling * weighed(0) / sum : 0.0f;  // their weights
    for (std::size_t k = 0; k < ids.size(); ++k) {
      const float d = rule.scaling * dweights[k];
      add(k, (difference_from_mean(weights, dweights, dweights[k]) + of_others * dweights[k] +
              d * rule.normalise_epsilon / sum) /
                 sum);
    }
    if (others > 0) dscores[0] += others * difference_from_mean(weights, dweights, 0) / sum;
  } else {
    for (std::size_t k = 0; k < ids.size(); ++k) add(k, rule.scaling * dweights[k]);
  }
}

void choose(const RoutingRule& rule, std::span<const float> logits, std::span<const float> bias,
            Scratch& scratch, std::span<std::int32_t> ids) {
  std::ranges::copy(rule.choose_by_logit ? logits : std::span<const float>(scratch.scores),
                    scratch.selection.begin());
  for (std::size_t e = 0; e < bias.size(); ++e) scratch.selection[e] += bias[e];
  if (rule.groups > 1) keep_best_groups(rule, scratch);
  top_k(scratch.selection, ids);
}

constexpr std::int64_t kRoutedAtOnce = 64;

std::span<const float> bias_of(const TensorView& bias) {
  return {bias.kernel_data<float>(), static_cast<std::size_t>(bias.defined() ? bias.size() : 0)};
}

// Uniform ids from the token's place in the batch, so that any layout draws the same.
void draw(const RandomChoices& random, const TensorView& logits, std::int64_t token,
          std::span<std::int32_t> ids) {
  const std::int64_t b = random.first_row + token / logits.dim(1),
                     s = random.first_column + token % logits.dim(1);
  const auto first = static_cast<std::uint64_t>((b * random.columns + s) * std::ssize(ids));
  for (std::size_t k = 0; k < ids.size(); ++k)
    ids[k] = rng_randint(random.key, first + k, 0, static_cast<std::int32_t>(logits.dim(2)));
}

bool is_given(std::span<const std::int32_t> choices) {
  return !choices.empty() && choices[0] != -1;
}

// The choices that were given for token t; empty where the rule chooses.
std::span<const std::int32_t> given_of(const TensorView& choices, std::int64_t t) {
  if (!choices.defined()) return {};
  const auto given = row_of<std::int32_t>(choices, t);
  return is_given(given) ? std::span<const std::int32_t>(given) : std::span<const std::int32_t>();
}

bool has_segment(const TensorView& segments, std::int64_t t) {
  return !segments.defined() || segments.kernel_data<std::int32_t>()[t] != 0;
}

// Drawn ids depend on no data of the device, so the host draws them.
void draw_then_weigh_on_gpu(const RouteArgs& args) {
  const Shape& shape = args.ids.shape();
  const Tensor drawn = Memory().zeros(DType::i32, shape);
  if (args.choices.defined()) copy(args.choices, drawn.view());
  for (std::int64_t t = 0; t < shape[0] * shape[1]; ++t) {
    const auto ids = row_of<std::int32_t>(drawn.view(), t);
    if (!args.choices.defined() || !is_given(ids)) draw(args.random, args.logits, t, ids);
  }
  copy(drawn.view(), args.ids);
  RouteArgs given = args;
  given.choices = args.ids;
  gpu::route(given);
}

const char* refuse_drawn(const RouteArgs& args) {
  return args.rule.random ? "the host draws the ids" : nullptr;
}

void route_tokens(ThreadPool& pool, const RouteArgs& args) {
  const RoutingRule& rule = args.rule;
  const auto bias = bias_of(args.bias);
  pool.for_range(
      args.logits.dim(0) * args.logits.dim(1), kRoutedAtOnce, [&](std::int64_t begin, std::int64_t end) {
        Scratch scratch(rule, args.logits.dim(2));
        for (std::int64_t t = begin; t < end; ++t) {
          const auto chosen = row_of<std::int32_t>(args.ids, t);
          if (!has_segment(args.segments, t)) {
            std::ranges::fill(chosen, -1);
            std::ranges::fill(row_of(args.weights, t), 0.0f);
            continue;
          }
          router_scores(rule.score, row_of(args.logits, t), scratch.scores);
          const auto given = given_of(args.choices, t);
          if (!given.empty())
            std::ranges::transform(given, chosen.begin(),
                                   [](auto id) { return id == kUnusedChoice ? -1 : id; });
          else if (rule.random)
            draw(args.random, args.logits, t, chosen);
          else
            choose(rule, row_of(args.logits, t), bias, scratch, chosen);
          weigh(rule, Weighed(rule, scratch.scores, bias, !given.empty()), chosen, row_of(args.weights, t));
        }
      });
}

// A token without an expert has no gradient, whatever its logits are.
bool chooses_none(const TensorView& ids, std::int64_t t) {
  return std::ranges::all_of(row_of<std::int32_t>(ids, t), [](std::int32_t id) { return id < 0; });
}

void token_gradients(ThreadPool& pool, const RouteBackwardArgs& args) {
  const RoutingRule& rule = args.rule;
  const auto bias = bias_of(args.bias);
  // The gradient of one token's (biased) scores, in scratch.selection.
  const auto dscores = [&](std::int64_t t, Scratch& scratch) {
    std::fill(scratch.selection.begin(), scratch.selection.end(), 0.0f);
    router_scores(rule.score, row_of(args.logits, t), scratch.scores);
    weigh_backward(rule, Weighed(rule, scratch.scores, bias, !given_of(args.choices, t).empty()),
                   row_of<std::int32_t>(args.ids, t), row_of(args.weights, t), row_of(args.dweights, t),
                   scratch.selection);
  };
  const std::int64_t tokens = args.logits.dim(0) * args.logits.dim(1);
  pool.for_range(tokens, kRoutedAtOnce, [&](std::int64_t begin, std::int64_t end) {
    Scratch scratch(rule, args.logits.dim(2));
    for (std::int64_t t = begin; t < end; ++t) {
      const auto dlogits = row_of(args.dlogits, t);
      std::ranges::fill(dlogits, 0.0f);
      if (chooses_none(args.ids, t)) continue;
      dscores(t, scratch);
      router_scores_backward(rule.score, scratch.scores, scratch.selection, dlogits);
    }
  });
  if (!args.dbias.defined()) return;
  const auto dbias = row_of(args.dbias, 0);
  std::ranges::fill(dbias, 0.0f);
  Scratch scratch(rule, args.logits.dim(2));
  for (std::int64_t t = 0; t < tokens && weights_have_bias(rule); ++t) {
    if (chooses_none(args.ids, t)) continue;
    dscores(t, scratch);
    for (std::size_t e = 0; e < dbias.size(); ++e) dbias[e] += scratch.selection[e];
  }
}

Work forward_work(const RouteArgs& args) {
  return {.flops = 8 * static_cast<double>(args.logits.size()),
          .bytes = static_cast<double>(args.logits.bytes() + args.ids.bytes() + args.weights.bytes())};
}

Work backward_work(const RouteBackwardArgs& args) {
  return {.flops = 8 * static_cast<double>(args.logits.size()),
          .bytes = static_cast<double>(2 * args.logits.bytes() + 3 * args.weights.bytes())};
}

constexpr Implementation<RouteArgs> kRoutes[] = {{"cuda", Gpu::any, gpu::route, refuse_drawn},
                                                 {"cuda_drawn", Gpu::any, draw_then_weigh_on_gpu},
                                                 {"portable", Isa::ref, route_tokens}};
constexpr Implementation<RouteBackwardArgs> kRouteBackwards[] = {{"cuda", Gpu::any, gpu::route_backward},
                                                                 {"portable", Isa::ref, token_gradients}};
constexpr Kernel<RouteArgs> kRoute{"route", forward_work, &RouteArgs::logits, kRoutes};
constexpr Kernel<RouteBackwardArgs> kRouteBackward{"route_backward", backward_work,
                                                   &RouteBackwardArgs::logits, kRouteBackwards};

// Checks the operands of both directions.
void check_choice(const char* op, const RoutingRule& rule, const TensorView& logits, const TensorView& bias,
                  const TensorView& ids, const TensorView& weights) {
  CHECK(logits.rank() == 3 && ids.rank() == 3 && ids.dim(2) <= logits.dim(2), "[{}] logits {} and ids {}", op,
        to_string(logits.shape()), to_string(ids.shape()));
  check_operand(op, "logits", logits, DType::f32, logits.shape());
  const Shape chosen{logits.dim(0), logits.dim(1), ids.dim(2)};
  check_operand(op, "ids", ids, DType::i32, chosen);
  check_operand(op, "weights", weights, DType::f32, chosen);
  if (bias.defined()) check_operand(op, "bias", bias, DType::f32, {logits.dim(2)});
  CHECK(rule.groups <= 1 || logits.dim(2) % rule.groups == 0, "[{}] {} experts in {} groups", op,
        logits.dim(2), rule.groups);
}

}  // namespace

bool weights_have_bias(const RoutingRule& rule) {
  return rule.random || rule.weights_include_bias;
}

void route_token(const RoutingRule& rule, std::span<const float> logits, std::span<const float> bias,
                 std::span<std::int32_t> ids, std::span<float> weights) {
  Scratch scratch(rule, std::ssize(logits));
  router_scores(rule.score, logits, scratch.scores);
  choose(rule, logits, bias, scratch, ids);
  weigh(rule, Weighed(rule, scratch.scores, bias, false), ids, weights);
}

void route(ThreadPool& pool, const RouteArgs& args) {
  check_choice("route", args.rule, args.logits, args.bias, args.ids, args.weights);
  if (args.choices.defined()) check_operand("route", "choices", args.choices, DType::i32, args.ids.shape());
  if (args.segments.defined())
    check_operand("route", "segments", args.segments, DType::i32, {args.logits.dim(0), args.logits.dim(1)});
  run(pool, kRoute, args);
}

void route_backward(ThreadPool& pool, const RouteBackwardArgs& args) {
  const char* const op = "route_backward";
  check_choice(op, args.rule, args.logits, args.bias, args.ids, args.weights);
  check_operand(op, "dweights", args.dweights, DType::f32, args.weights.shape());
  check_operand(op, "dlogits", args.dlogits, DType::f32, args.logits.shape());
  if (args.dbias.defined()) check_operand(op, "dbias", args.dbias, DType::f32, {args.logits.dim(2)});
  run(pool, kRouteBackward, args);
}

}  // namespace switchyard

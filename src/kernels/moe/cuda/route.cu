// The choice of experts: a warp takes a token and keeps its scores in shared memory.
#include "kernels/cuda/portable.h"
#include "kernels/cuda/workspace.h"
#include "kernels/moe/cuda/router_scores.h"
#include "kernels/moe/kernels.h"

namespace switchyard::gpu {
namespace {

constexpr int kRouteWarps = 4, kRouteThreads = kRouteWarps * kWarp;

// Orders values: a larger value first, and of equal ones the lower index. NaN is below all others.
GPU_FUNCTION std::uint64_t rank_of(float value, std::int64_t index) {
  const std::uint32_t bits = bits_of(value + 0.0f);  // -0 is 0
  const std::uint32_t ordered = value != value ? 0u : (bits >> 31) != 0u ? ~bits : bits | 0x80000000u;
  return static_cast<std::uint64_t>(ordered) << 32 | (0xffffffffu - static_cast<std::uint32_t>(index));
}

GPU_FUNCTION std::int32_t index_of_rank(std::uint64_t rank) {
  return static_cast<std::int32_t>(0xffffffffu - static_cast<std::uint32_t>(rank));
}

// The best of `count` values that is worse than `than`, for all lanes.
GPU_FUNCTION std::uint64_t best_below(std::uint64_t than, const float* values, std::int64_t count) {
  std::uint64_t best = 0;
  for (std::int64_t i = lane_index(); i < count; i += kWarp) {
    const std::uint64_t rank = rank_of(values[i], i);
    if (rank < than && rank > best) best = rank;
  }
  for (int mask = kWarp / 2; mask > 0; mask /= 2) {
    const std::uint64_t other = shuffle_xor(best, mask);
    if (other > best) best = other;
  }
  return best;
}

constexpr std::uint64_t kNoRank = ~std::uint64_t{0};

// Experts outside the best groups get -infinity. `group_scores`: one float a group.
GPU_FUNCTION void keep_best_groups(const RoutingRule& rule, float* selection, std::int64_t experts,
                                   float* group_scores) {
  const std::int64_t size = experts / rule.groups;
  for (std::int64_t g = lane_index(); g < rule.groups; g += kWarp) {
    float best = -INFINITY, second = best;
    for (std::int64_t i = g * size; i < (g + 1) * size; ++i) {
      const float s = selection[i];
      if (s > best) {
        second = best;
        best = s;
      } else if (s > second) {
        second = s;
      }
    }
    group_scores[g] = (rule.by_two_best || scores_each_alone(rule.score)) && size > 1 ? best + second : best;
  }
  warp_barrier();
  std::uint64_t last = kNoRank;
  for (std::int64_t kept = 0; kept < rule.kept_groups; ++kept)
    last = best_below(last, group_scores, rule.groups);
  for (std::int64_t e = lane_index(); e < experts; e += kWarp) {
    if (rank_of(group_scores[e / size], e / size) < last) selection[e] = -INFINITY;
  }
  warp_barrier();
}

// The score that is weighed of an expert, with the bias where weights hold it; as in kernels/moe/route.cc.
struct Weighed {
  const float *scores, *bias;  // bias: null where weights do not hold it
  GPU_FUNCTION float operator()(std::int32_t id) const {
    return scores[id] + (bias == nullptr ? 0.0f : bias[id]);
  }
};

GPU_FUNCTION Weighed weighed_of(const RoutingRule& rule, const float* scores, const float* bias, bool given) {
  const bool with_bias = rule.random || rule.weights_include_bias || (given && rule.given_as_maxtext);
  return {scores, with_bias ? bias : nullptr};
}

// Counts how often expert 0 enters the sum of weights for choices without an expert.
GPU_FUNCTION float stand_ins(const RoutingRule& rule, const std::int32_t* ids, std::int64_t per_token) {
  float count = 0;
  for (std::int64_t k = 0; k < per_token && rule.given_as_maxtext; ++k) count += ids[k] < 0 ? 1.0f : 0.0f;
  return count;
}

GPU_FUNCTION float sum_to_divide_by(const RoutingRule& rule, const Weighed& weighed, const std::int32_t* ids,
                                    std::int64_t per_token) {
  float sum = rule.normalise_epsilon;
  for (std::int64_t k = 0; k < per_token; ++k) sum += ids[k] >= 0 ? weighed(ids[k]) : 0.0f;
  const float others = stand_ins(rule, ids, per_token);
  return others > 0 ? sum + others * weighed(0) : sum;
}

// Weights of the chosen ids, by one lane.
GPU_FUNCTION void weigh(const RoutingRule& rule, const Weighed& weighed, const std::int32_t* ids,
                        std::int64_t per_token, float* weights) {
  if (rule.softmax_over_selected && !rule.random) {
    float top = -INFINITY, sum = 0;
    for (std::int64_t k = 0; k < per_token; ++k) {
      weights[k] = ids[k] >= 0 ? weighed(ids[k]) : -INFINITY;
      top = weights[k] > top ? weights[k] : top;
    }
    for (std::int64_t k = 0; k < per_token; ++k)
      sum += (weights[k] = ids[k] >= 0 ? expf(weights[k] - top) : 0.0f);
    for (std::int64_t k = 0; k < per_token; ++k) weights[k] = sum > 0 ? weights[k] / sum : 0.0f;
    return;
  }
  const bool divides = rule.normalise && !rule.random;
  const float sum = divides ? sum_to_divide_by(rule, weighed, ids, per_token) : 1.0f;
  for (std::int64_t k = 0; k < per_token; ++k) {
    const float w = ids[k] >= 0 ? weighed(ids[k]) : 0.0f;
    weights[k] = rule.random || w == 0 ? w : (divides ? w / sum : w) * rule.scaling;
  }
}

// Floats of shared memory that a token takes: scores, selection, and the groups' scores.
std::int64_t floats_of(const RoutingRule& rule, std::int64_t experts) {
  return 2 * experts + (rule.groups > 1 ? rule.groups : 0);
}

GPU_KERNEL choose_experts(RoutingRule rule, const float* logits, const float* bias,
                          const std::int32_t* choices, const std::int32_t* segments, std::int64_t tokens,
                          std::int64_t experts, std::int64_t per_token, std::int64_t floats,
                          std::int32_t* ids, float* weights) {
  const int warp = thread_index() / kWarp;
  const std::int64_t token = block_index() * kRouteWarps + warp;
  if (token >= tokens) return;
  float* const scores = dynamic_shared<float>() + warp * floats;
  float* const selection = scores + experts;
  std::int32_t* const chosen = ids + token * per_token;
  if (segments != nullptr && segments[token] == 0) {
    for (std::int64_t k = lane_index(); k < per_token; k += kWarp) {
      chosen[k] = -1;
      weights[token * per_token + k] = 0;
    }
    return;  // a whole warp
  }
  const bool given = choices != nullptr && choices[token * per_token] != -1;
  for (std::int64_t e = lane_index(); e < experts; e += kWarp) scores[e] = logits[token * experts + e];
  warp_barrier();
  warp_scores(rule.score, scores, scores, experts);
  if (!given) {
    for (std::int64_t e = lane_index(); e < experts; e += kWarp)
      selection[e] = (rule.choose_by_logit ? logits[token * experts + e] : scores[e]) +
                     (bias == nullptr ? 0.0f : bias[e]);
    warp_barrier();
    if (rule.groups > 1) keep_best_groups(rule, selection, experts, selection + experts);
  }
  std::uint64_t last = kNoRank;
  for (std::int64_t k = 0; k < per_token; ++k) {
    if (!given) last = best_below(last, selection, experts);
    if (lane_index() != 0) continue;
    const std::int32_t id = given ? choices[token * per_token + k] : index_of_rank(last);
    chosen[k] = id == kUnusedChoice ? -1 : id;
  }
  if (lane_index() == 0)
    weigh(rule, weighed_of(rule, scores, bias, given), chosen, per_token, weights + token * per_token);
}

// d - Σ_j w_j d_j by differences, as the host's kernel has it.
GPU_FUNCTION float difference_from_mean(const float* weights, const float* d, std::int64_t per_token,
                                        float own) {
  float sum = 0;
  for (std::int64_t j = 0; j < per_token; ++j) sum += weights[j] * (own - d[j]);
  return sum;
}

GPU_FUNCTION void weigh_backward(const RoutingRule& rule, const Weighed& weighed, const std::int32_t* ids,
                                 const float* weights, const float* dweights, std::int64_t per_token,
                                 float* dscores) {
  const bool normalises = !rule.random && !rule.softmax_over_selected && rule.normalise;
  const float sum = normalises ? sum_to_divide_by(rule, weighed, ids, per_token) : 1.0f,
              others = normalises ? stand_ins(rule, ids, per_token) : 0.0f;
  if (normalises && sum == 0) return;  // of scores that are all 0, and so are the weights
  const float of_others = others > 0 ? others * rule.scaling * weighed(0) / sum : 0.0f;  // their weights
  if (others > 0) dscores[0] += others * difference_from_mean(weights, dweights, per_token, 0) / sum;
  for (std::int64_t k = 0; k < per_token; ++k) {
    if (ids[k] < 0) continue;
    float d = dweights[k];
    if (rule.random) {
    } else if (rule.softmax_over_selected) {
      d = weights[k] * difference_from_mean(weights, dweights, per_token, d);
    } else if (rule.normalise) {
      d = (difference_from_mean(weights, dweights, per_token, d) + of_others * d +
           rule.scaling * d * rule.normalise_epsilon / sum) /
          sum;
    } else {
      d *= rule.scaling;
    }
    dscores[ids[k]] += d;
  }
}

// A token without an expert has no gradient, whatever its logits are.
GPU_FUNCTION bool chooses_none(const std::int32_t* ids, std::int64_t per_token) {
  for (std::int64_t k = 0; k < per_token; ++k) {
    if (ids[k] >= 0) return false;
  }
  return true;
}

// `all_dscores`: [tokens, experts], or null.
GPU_KERNEL choice_gradients(RoutingRule rule, const float* logits, const float* bias,
                            const std::int32_t* choices, const std::int32_t* ids, const float* weights,
                            const float* dweights, std::int64_t tokens, std::int64_t experts,
                            std::int64_t per_token, float* dlogits, float* all_dscores) {
  const int warp = thread_index() / kWarp;
  const std::int64_t token = block_index() * kRouteWarps + warp;
  if (token >= tokens) return;
  float* const scores = dynamic_shared<float>() + warp * 2 * experts;
  float* const dscores = scores + experts;
  if (chooses_none(ids + token * per_token, per_token)) {
    for (std::int64_t e = lane_index(); e < experts; e += kWarp) {
      dlogits[token * experts + e] = 0;
      if (all_dscores != nullptr) all_dscores[token * experts + e] = 0;
    }
    return;  // a whole warp
  }
  for (std::int64_t e = lane_index(); e < experts; e += kWarp) {
    scores[e] = logits[token * experts + e];
    dscores[e] = 0;
  }
  warp_barrier();
  warp_scores(rule.score, scores, scores, experts);
  const std::int64_t at = token * per_token;
  const bool given = choices != nullptr && choices[at] != -1;
  if (lane_index() == 0)
    weigh_backward(rule, weighed_of(rule, scores, bias, given), ids + at, weights + at, dweights + at,
                   per_token, dscores);
  warp_barrier();
  warp_scores_backward<false>(rule.score, scores, dscores, dlogits + token * experts, experts);
  for (std::int64_t e = lane_index(); e < experts && all_dscores != nullptr; e += kWarp)
    all_dscores[token * experts + e] = dscores[e];
}

// Sums each column in the order of rows.
GPU_KERNEL sum_columns(const float* x, std::int64_t rows, std::int64_t columns, float* out) {
  const std::int64_t column = block_index() * thread_count() + thread_index();
  if (column >= columns) return;
  float sum = 0;
  for (std::int64_t row = 0; row < rows; ++row) sum += x[row * columns + column];
  out[column] = sum;
}

}  // namespace

void sum_columns_in_order(const float* x, std::int64_t rows, std::int64_t columns, float* out) {
  launch({.blocks = divide_up(columns, kRouteThreads), .threads = kRouteThreads}, sum_columns, x, rows,
         columns, out);
}

void route(const RouteArgs& args) {
  const std::int64_t experts = args.logits.dim(2), per_token = args.ids.dim(2),
                     tokens = args.logits.dim(0) * args.logits.dim(1);
  const std::int64_t floats = floats_of(args.rule, experts);
  launch({.blocks = divide_up(tokens, kRouteWarps),
          .threads = kRouteThreads,
          .shared_bytes = static_cast<std::size_t>(kRouteWarps * floats) * sizeof(float)},
         choose_experts, args.rule, args.logits.device_data<float>(), args.bias.device_data<float>(),
         args.choices.device_data<std::int32_t>(), args.segments.device_data<std::int32_t>(), tokens, experts,
         per_token, floats, args.ids.device_data<std::int32_t>(), args.weights.device_data<float>());
}

void route_backward(const RouteBackwardArgs& args) {
  const std::int64_t experts = args.logits.dim(2), per_token = args.ids.dim(2),
                     tokens = args.logits.dim(0) * args.logits.dim(1);
  const bool sums = args.dbias.defined() && weights_have_bias(args.rule);
  const Workspace dscores(args.logits, sums ? args.logits.bytes() : 0);
  launch({.blocks = divide_up(tokens, kRouteWarps),
          .threads = kRouteThreads,
          .shared_bytes = static_cast<std::size_t>(kRouteWarps * 2 * experts) * sizeof(float)},
         choice_gradients, args.rule, args.logits.device_data<float>(), args.bias.device_data<float>(),
         args.choices.device_data<std::int32_t>(), args.ids.device_data<std::int32_t>(),
         args.weights.device_data<float>(), args.dweights.device_data<float>(), tokens, experts, per_token,
         args.dlogits.device_data<float>(), dscores.data<float>());
  if (args.dbias.defined())
    sum_columns_in_order(dscores.data<float>(), sums ? tokens : 0, experts, args.dbias.device_data<float>());
}

}  // namespace switchyard::gpu

#include "moe/router.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/rng.h"
#include "ops/basic.h"
#include "ops/einsum.h"

namespace switchyard {
namespace {

// The k largest of `values`, best first; ties go to the lower index. Insertion: k is small and most values
// are beaten.
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

// What routing one token after the other needs, allocated once.
struct Scratch {
  explicit Scratch(const MoeConfig& config)
      : scores(static_cast<std::size_t>(config.experts)),
        selection(scores.size()),
        group_scores(static_cast<std::size_t>(config.groups)),
        kept_groups(static_cast<std::size_t>(config.groups > 1 ? config.kept_groups : 0)) {}
  std::vector<float> scores, selection, group_scores;
  std::vector<std::int32_t> kept_groups;
};

// Experts outside the best groups become unselectable. A group scores the sum of its two best (sigmoid) or
// its best.
void keep_best_groups(const MoeConfig& config, Scratch& scratch) {
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
    scratch.group_scores[g] = config.score == RouterScore::sigmoid && size > 1 ? best + second : best;
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

bool weights_have_bias(const MoeConfig& config) {
  return config.random_routing || config.weights_include_bias;
}

// Weights of the chosen ids from the scores. With random routing they are the gate's outputs, unchanged.
void weigh(const MoeConfig& config, std::span<const float> scores, std::span<const float> bias,
           std::span<const std::int32_t> ids, std::span<float> weights) {
  const bool with_bias = !bias.empty() && weights_have_bias(config);
  for (std::size_t k = 0; k < ids.size(); ++k)
    weights[k] = at(scores, ids[k]) + (with_bias ? at(bias, ids[k]) : 0.0f);
  if (config.random_routing) return;
  if (config.softmax_over_selected) {
    const float top = *std::max_element(weights.begin(), weights.end());
    float sum = 0;
    for (float& w : weights) sum += (w = std::exp(w - top));
    for (float& w : weights) w /= sum;
    return;
  }
  if (config.normalise) {
    const float sum = std::accumulate(weights.begin(), weights.end(), config.normalise_epsilon);
    for (float& w : weights) w /= sum;
  }
  for (float& w : weights) w *= config.scaling;
}

// d - Σ_j w_j d_j for weights of sum 1 (and, scaled alike, for others), by differences: exactly 0 where all d
// are equal, as with one slot, where the two sums would leave their rounding for a gradient.
float difference_from_mean(std::span<const float> weights, std::span<const float> d, float own) {
  float sum = 0;
  for (std::size_t j = 0; j < d.size(); ++j) sum += weights[j] * (own - d[j]);
  return sum;
}

// Gradient of `weigh` with respect to the scores, added to dscores.
void weigh_backward(const MoeConfig& config, std::span<const float> scores, std::span<const float> bias,
                    std::span<const std::int32_t> ids, std::span<const float> weights,
                    std::span<const float> dweights, std::span<float> dscores) {
  auto add = [&](std::size_t k, float g) { dscores[static_cast<std::size_t>(ids[k])] += g; };
  if (config.random_routing) {
    for (std::size_t k = 0; k < ids.size(); ++k) add(k, dweights[k]);
  } else if (config.softmax_over_selected) {
    for (std::size_t k = 0; k < ids.size(); ++k)
      add(k, weights[k] * difference_from_mean(weights, dweights, dweights[k]));
  } else if (config.normalise) {
    float sum = config.normalise_epsilon;
    for (auto id : ids)
      sum += at(scores, id) + (config.weights_include_bias && !bias.empty() ? at(bias, id) : 0.0f);
    for (std::size_t k = 0; k < ids.size(); ++k) {
      const float d = config.scaling * dweights[k];
      add(k,
          (difference_from_mean(weights, dweights, dweights[k]) + d * config.normalise_epsilon / sum) / sum);
    }
  } else {
    for (std::size_t k = 0; k < ids.size(); ++k) add(k, config.scaling * dweights[k]);
  }
}

void choose(const MoeConfig& config, std::span<const float> bias, Scratch& scratch,
            std::span<std::int32_t> ids) {
  std::copy(scratch.scores.begin(), scratch.scores.end(), scratch.selection.begin());
  for (std::size_t e = 0; e < bias.size(); ++e) scratch.selection[e] += bias[e];
  if (config.groups > 1) keep_best_groups(config, scratch);
  top_k(scratch.selection, ids);
}

constexpr std::int64_t kRoutedAtOnce = 64;

class RouteOp : public Op {
 public:
  RouteOp(MoeConfig config, std::int64_t step, std::int64_t layer, std::int64_t first_row, Tensor replayed)
      : config_(std::move(config)), first_row_(first_row), replayed_(std::move(replayed)) {
    key_ = rng_fold_in(rng_fold_in(rng_key(config_.random_seed), static_cast<std::uint32_t>(step)),
                       static_cast<std::uint32_t>(layer));
  }
  std::string_view name() const override { return "route"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    ArrayInfo weights = in[0];
    weights.shape.back() = weights.local.back() = config_.slots;
    ArrayInfo ids = weights;
    ids.dtype = DType::i32;
    return {ids, weights};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo> infos) const override {
    const Tensor& logits = in[0];
    const Shape shape{logits.dim(0), logits.dim(1), config_.slots};
    Tensor ids(DType::i32, shape), weights(DType::f32, shape);
    const auto bias = bias_of(in);
    c.pool->for_range(logits.dim(0) * logits.dim(1), kRoutedAtOnce,
                      [&](std::int64_t begin, std::int64_t end) {
                        Scratch scratch(config_);
                        for (std::int64_t t = begin; t < end; ++t) {
                          auto chosen = row_of<std::int32_t>(ids, t);
                          router_scores(config_.score, row_of(logits, t), scratch.scores);
                          if (replayed_.defined())
                            std::ranges::copy(row_of<std::int32_t>(replayed_, t), chosen.begin());
                          else if (config_.random_routing)
                            draw(c, infos[0], t, chosen);
                          else
                            choose(config_, bias, scratch, chosen);
                          weigh(config_, scratch.scores, bias, chosen, row_of(weights, t));
                        }
                      });
    return {ids, weights};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    std::vector<Tensor> grads(call.inputs());
    if (!call.grad(1).defined()) return grads;
    std::vector<Tensor> in;
    for (std::size_t i = 0; i < call.inputs(); ++i) in.push_back(call.input(i));
    const Tensor &logits = in[0], ids = call.output(0), weights = call.output(1), &dweights = call.grad(1);
    const std::int64_t tokens = logits.dim(0) * logits.dim(1);
    // Of one token, when scratch.scores is filled: selection becomes the gradient of the (biased) scores.
    const auto dscores = [&](std::int64_t t, Scratch& scratch) {
      std::fill(scratch.selection.begin(), scratch.selection.end(), 0.0f);
      router_scores(config_.score, row_of(logits, t), scratch.scores);
      weigh_backward(config_, scratch.scores, bias_of(in), row_of<std::int32_t>(ids, t), row_of(weights, t),
                     row_of(dweights, t), scratch.selection);
    };
    grads[0] = Tensor::zeros(DType::f32, logits.shape());
    c.pool->for_range(tokens, kRoutedAtOnce, [&](std::int64_t begin, std::int64_t end) {
      Scratch scratch(config_);
      for (std::int64_t t = begin; t < end; ++t) {
        dscores(t, scratch);
        router_scores_backward(config_.score, scratch.scores, scratch.selection, row_of(grads[0], t));
      }
    });
    if (in.size() > 1 && call.wanted(1) &&
        weights_have_bias(config_)) {  // in token order on any number of threads
      grads[1] = Tensor::zeros(DType::f32, in[1].shape());
      Scratch scratch(config_);
      for (std::int64_t t = 0; t < tokens && !c.abstract(); ++t) {
        dscores(t, scratch);
        for (std::size_t e = 0; e < scratch.selection.size(); ++e)
          grads[1].data<float>()[e] += scratch.selection[e];
      }
    }
    return grads;
  }
  std::uint32_t needs_outputs() const override { return 3; }

 private:
  template <typename T = float>
  static std::span<T> row_of(const Tensor& x, std::int64_t t) {
    return x.span<T>().subspan(static_cast<std::size_t>(t * x.shape().back()),
                               static_cast<std::size_t>(x.shape().back()));
  }
  static std::span<const float> bias_of(std::span<const Tensor> in) {
    return in.size() > 1 ? std::span<const float>(in[1].span<float>()) : std::span<const float>();
  }
  // Uniform ids from the row's global index, so that any layout draws the same.
  void draw(const Context& c, const ArrayInfo& info, std::int64_t token, std::span<std::int32_t> ids) const {
    const Shape offset = local_offset(*c.mesh, c.rank, info.shape, info.sharding);
    const std::int64_t b = first_row_ + offset[0] + token / info.local[1],
                       s = offset[1] + token % info.local[1];
    const auto first = static_cast<std::uint64_t>((b * info.shape[1] + s) * config_.slots);
    for (std::size_t k = 0; k < ids.size(); ++k) {
      ids[k] = rng_randint(key_, first + k, 0, static_cast<std::int32_t>(config_.experts));
    }
  }
  MoeConfig config_;
  std::int64_t first_row_;
  Tensor replayed_;
  RngKey key_;
};

}  // namespace

float mean_from_first(std::span<const float> shares, std::span<const float> d) {
  float mean = 0;
  for (std::size_t e = 0; e < d.size(); ++e) mean += shares[e] * (d[e] - d[0]);
  return mean;
}

void router_scores(RouterScore score, std::span<const float> logits, std::span<float> s) {
  std::copy(logits.begin(), logits.end(), s.begin());
  if (score == RouterScore::softmax) {
    const float top = *std::max_element(s.begin(), s.end());
    float sum = 0;
    for (float& v : s) sum += (v = std::exp(v - top));
    for (float& v : s) v /= sum;
  } else if (score == RouterScore::sigmoid) {
    for (float& v : s) v = 1.0f / (1.0f + std::exp(-v));
  }
}

void router_scores_backward(RouterScore score, std::span<const float> scores, std::span<const float> dscores,
                            std::span<float> dlogits) {
  const float mean = score == RouterScore::softmax ? mean_from_first(scores, dscores) : 0.0f;
  for (std::size_t e = 0; e < scores.size(); ++e) {
    switch (score) {
      case RouterScore::none:
        dlogits[e] += dscores[e];
        break;
      case RouterScore::softmax:
        dlogits[e] += scores[e] * (dscores[e] - dscores[0] - mean);
        break;
      case RouterScore::sigmoid:
        dlogits[e] += dscores[e] * scores[e] * (1 - scores[e]);
        break;
    }
  }
}

void route_token(const MoeConfig& config, std::span<const float> logits, std::span<const float> bias,
                 std::span<std::int32_t> ids, std::span<float> weights) {
  Scratch scratch(config);
  router_scores(config.score, logits, scratch.scores);
  choose(config, bias, scratch, ids);
  weigh(config, scratch.scores, bias, ids, weights);
}

Array gate_logits(Context& context, const MoeConfig& config, const Array& x, const Array& gate) {
  const DType dtype = config.float32_gate_logits ? DType::f32 : x.dtype();
  const Sharding want{{x.sharding().dims[0], x.sharding().dims[1], {}}, {}};
  return cast(context,
              einsum(context, "BSM,ME->BSE", cast(context, x, dtype), cast(context, gate, dtype), &want),
              DType::f32);
}

Routing route(Context& context, const MoeConfig& config, const Array& logits, const Array& bias,
              std::int64_t step, std::int64_t layer, std::int64_t first_row, const Tensor& replayed) {
  std::vector<Array> inputs{logits};
  if (bias.defined()) inputs.push_back(bias);
  auto out = apply(context, std::make_shared<RouteOp>(config, step, layer, first_row, replayed), inputs);
  return {always_keep(out[0]), always_keep(out[1])};
}

}  // namespace switchyard

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

// The k largest of `values`, best first; ties go to the lower index.
void top_k(std::span<const float> values, std::span<std::int32_t> ids) {
  std::vector<std::int32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(ids.size()), order.end(),
                    [&](std::int32_t a, std::int32_t b) {
                      const float x = values[static_cast<std::size_t>(a)], y = values[static_cast<std::size_t>(b)];
                      return x > y || (x == y && a < b);
                    });
  std::copy_n(order.begin(), ids.size(), ids.begin());
}

// Experts outside the best groups become unselectable. A group scores the sum of its two best (sigmoid) or its best.
void keep_best_groups(const MoeConfig& config, std::span<float> scores) {
  const auto groups = static_cast<std::size_t>(config.groups);
  const std::size_t size = scores.size() / groups;
  std::vector<float> group_scores(groups);
  for (std::size_t g = 0; g < groups; ++g) {
    auto members = scores.subspan(g * size, size);
    float best = -std::numeric_limits<float>::infinity(), second = best;
    for (float s : members) {
      if (s > best) second = std::exchange(best, s);
      else second = std::max(second, s);
    }
    group_scores[g] = config.score == RouterScore::sigmoid && size > 1 ? best + second : best;
  }
  std::vector<std::int32_t> kept(static_cast<std::size_t>(config.kept_groups));
  top_k(group_scores, kept);
  for (std::size_t g = 0; g < groups; ++g) {
    if (std::find(kept.begin(), kept.end(), static_cast<std::int32_t>(g)) != kept.end()) continue;
    for (float& s : scores.subspan(g * size, size)) s = -std::numeric_limits<float>::infinity();
  }
}

float at(std::span<const float> values, std::int32_t id) { return values[static_cast<std::size_t>(id)]; }

// Weights of the chosen ids from the scores. With random routing they are the gate's outputs, unchanged.
void weigh(const MoeConfig& config, std::span<const float> scores, std::span<const float> bias,
           std::span<const std::int32_t> ids, std::span<float> weights) {
  const bool with_bias = !bias.empty() && (config.random_routing || config.weights_include_bias);
  for (std::size_t k = 0; k < ids.size(); ++k) weights[k] = at(scores, ids[k]) + (with_bias ? at(bias, ids[k]) : 0.0f);
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

// Gradient of `weigh` with respect to the scores, added to dscores.
void weigh_backward(const MoeConfig& config, std::span<const float> scores, std::span<const float> bias,
                    std::span<const std::int32_t> ids, std::span<const float> weights, std::span<const float> dweights,
                    std::span<float> dscores) {
  auto add = [&](std::size_t k, float g) { dscores[static_cast<std::size_t>(ids[k])] += g; };
  if (config.random_routing) {
    for (std::size_t k = 0; k < ids.size(); ++k) add(k, dweights[k]);
  } else if (config.softmax_over_selected) {
    const float dot = std::inner_product(weights.begin(), weights.end(), dweights.begin(), 0.0f);
    for (std::size_t k = 0; k < ids.size(); ++k) add(k, weights[k] * (dweights[k] - dot));
  } else if (config.normalise) {
    float sum = config.normalise_epsilon;
    for (auto id : ids) sum += at(scores, id) + (config.weights_include_bias && !bias.empty() ? at(bias, id) : 0.0f);
    const float dot = std::inner_product(weights.begin(), weights.end(), dweights.begin(), 0.0f) / config.scaling;
    for (std::size_t k = 0; k < ids.size(); ++k) add(k, config.scaling * (dweights[k] - dot) / sum);
  } else {
    for (std::size_t k = 0; k < ids.size(); ++k) add(k, config.scaling * dweights[k]);
  }
}

class RouteOp : public Op {
 public:
  RouteOp(MoeConfig config, std::int64_t step, std::int64_t layer) : config_(std::move(config)) {
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
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in, std::span<const ArrayInfo> infos) const override {
    const Tensor& logits = in[0];
    const Shape shape{logits.dim(0), logits.dim(1), config_.slots};
    Tensor ids(DType::i32, shape), weights(DType::f32, shape);
    for (std::int64_t t = 0; t < logits.dim(0) * logits.dim(1); ++t) {
      const auto row = row_of(logits, t);
      auto chosen = row_of<std::int32_t>(ids, t);
      const auto bias = bias_of(in);
      if (config_.random_routing) {
        draw(c, infos[0], t, chosen);
        weigh(config_, router_scores(config_.score, row), bias, chosen, row_of(weights, t));
      } else {
        route_token(config_, row, bias, chosen, row_of(weights, t));
      }
    }
    return {ids, weights};
  }
  std::vector<Tensor> backward(Context&, const BackwardCall& call) const override {
    std::vector<Tensor> grads(call.inputs());
    if (!call.grad(1).defined()) return grads;
    const Tensor logits = call.input(0), ids = call.output(0), weights = call.output(1);
    const Tensor bias = call.inputs() > 1 ? call.input(1) : Tensor();
    Tensor dlogits = Tensor::zeros(DType::f32, logits.shape());
    std::vector<float> dscores(static_cast<std::size_t>(config_.experts));
    for (std::int64_t t = 0; t < logits.dim(0) * logits.dim(1); ++t) {
      const auto scores = router_scores(config_.score, row_of(logits, t));
      std::fill(dscores.begin(), dscores.end(), 0.0f);
      weigh_backward(config_, scores, bias.defined() ? bias.span<float>() : std::span<float>(), row_of<std::int32_t>(ids, t),
                     row_of(weights, t), row_of(call.grad(1), t), dscores);
      router_scores_backward(config_.score, scores, dscores, row_of(dlogits, t));
    }
    grads[0] = dlogits;
    return grads;
  }
  std::uint32_t needs_outputs() const override { return 3; }

 private:
  template <typename T = float>
  static std::span<T> row_of(const Tensor& x, std::int64_t t) {
    return x.span<T>().subspan(static_cast<std::size_t>(t * x.shape().back()), static_cast<std::size_t>(x.shape().back()));
  }
  static std::span<const float> bias_of(std::span<const Tensor> in) {
    return in.size() > 1 ? std::span<const float>(in[1].span<float>()) : std::span<const float>();
  }
  // Uniform ids from the row's global index, so that any layout draws the same.
  void draw(const Context& c, const ArrayInfo& info, std::int64_t token, std::span<std::int32_t> ids) const {
    const Shape offset = local_offset(*c.mesh, c.rank, info.shape, info.sharding);
    const std::int64_t b = offset[0] + token / info.local[1], s = offset[1] + token % info.local[1];
    const auto first = static_cast<std::uint64_t>((b * info.shape[1] + s) * config_.slots);
    for (std::size_t k = 0; k < ids.size(); ++k) {
      ids[k] = rng_randint(key_, first + k, 0, static_cast<std::int32_t>(config_.experts));
    }
  }
  MoeConfig config_;
  RngKey key_;
};

}  // namespace

std::vector<float> router_scores(RouterScore score, std::span<const float> logits) {
  std::vector<float> s(logits.begin(), logits.end());
  if (score == RouterScore::softmax) {
    const float top = *std::max_element(s.begin(), s.end());
    float sum = 0;
    for (float& v : s) sum += (v = std::exp(v - top));
    for (float& v : s) v /= sum;
  } else if (score == RouterScore::sigmoid) {
    for (float& v : s) v = 1.0f / (1.0f + std::exp(-v));
  }
  return s;
}

void router_scores_backward(RouterScore score, std::span<const float> scores, std::span<const float> dscores,
                            std::span<float> dlogits) {
  const float dot = score == RouterScore::softmax
                        ? std::inner_product(scores.begin(), scores.end(), dscores.begin(), 0.0f)
                        : 0.0f;
  for (std::size_t e = 0; e < scores.size(); ++e) {
    switch (score) {
      case RouterScore::none: dlogits[e] += dscores[e]; break;
      case RouterScore::softmax: dlogits[e] += scores[e] * (dscores[e] - dot); break;
      case RouterScore::sigmoid: dlogits[e] += dscores[e] * scores[e] * (1 - scores[e]); break;
    }
  }
}

void route_token(const MoeConfig& config, std::span<const float> logits, std::span<const float> bias,
                 std::span<std::int32_t> ids, std::span<float> weights) {
  const std::vector<float> scores = router_scores(config.score, logits);
  std::vector<float> selection = scores;
  for (std::size_t e = 0; e < bias.size(); ++e) selection[e] += bias[e];
  if (config.groups > 1) keep_best_groups(config, selection);
  top_k(selection, ids);
  weigh(config, scores, bias, ids, weights);
}

Array gate_logits(Context& context, const MoeConfig& config, const Array& x, const Array& gate) {
  const DType dtype = config.float32_gate_logits ? DType::f32 : x.dtype();
  const Sharding want{{x.sharding().dims[0], x.sharding().dims[1], {}}, {}};
  return cast(context, einsum(context, "BSM,ME->BSE", cast(context, x, dtype), cast(context, gate, dtype), &want), DType::f32);
}

Routing route(Context& context, const MoeConfig& config, const Array& logits, const Array& bias, std::int64_t step,
              std::int64_t layer) {
  std::vector<Array> inputs{logits};
  if (bias.defined()) inputs.push_back(bias);
  auto out = apply(context, std::make_shared<RouteOp>(config, step, layer), inputs);
  return {always_keep(out[0]), always_keep(out[1])};
}

}  // namespace switchyard

#include "moe/balance.h"

#include <numeric>

#include "moe/router.h"
#include "ops/reshard.h"

namespace switchyard {
namespace {

// Per sequence: density[e] and prob[e], their token count, all over the whole sequence.
struct SequenceStatistics {
  std::vector<double> density, prob;
  double tokens = 0;
};

class BalanceLossOp : public Op {
 public:
  explicit BalanceLossOp(MoeConfig config) : config_(std::move(config)) {}
  std::string_view name() const override { return "balance_loss"; }

  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    ArrayInfo loss;
    loss.sharding.partial = in[0].sharding.dims[0];  // sequences; a split sequence is summed inside
    return {loss};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo> infos) const override {
    double loss = 0;
    for (const auto& s : statistics(c, in, probabilities(c, in), infos[0])) {
      loss += std::inner_product(s.density.begin(), s.density.end(), s.prob.begin(), 0.0);
    }
    const auto value = static_cast<float>(loss * factor(infos[0]));
    return {Tensor::of<float>({}, std::span(&value, 1))};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    std::vector<Tensor> in;
    for (std::size_t i = 0; i < call.inputs(); ++i) in.push_back(call.input(i));
    const ArrayInfo& info = call.input_info(0);
    float g = c.abstract() ? 0.0f : call.grad(0).data<float>()[0];
    if (const Axes& axes = info.sharding.dims[1]; !axes.empty()) {
      c.comm->all_reduce(c.group(axes), joined(axes), DType::f32, &g, 1);
    }
    const Tensor prob = probabilities(c, in);
    const auto all = statistics(c, in, prob, info);
    const std::int64_t batch = in[0].dim(0), length = in[0].dim(1), experts = config_.experts;
    Tensor dprob(DType::f32, {batch, experts});  // the same for all tokens of a sequence
    for (std::int64_t i = 0; i < batch * experts && !c.abstract(); ++i) {
      const auto& s = all[static_cast<std::size_t>(i / experts)];
      dprob.data<float>()[i] =
          static_cast<float>(g * factor(info) * s.density[static_cast<std::size_t>(i % experts)] / s.tokens);
    }
    std::vector<Tensor> grads(in.size());
    grads[0] = Tensor::zeros(DType::f32, in[0].shape());
    const bool to_bias = in.size() > 3 && call.wanted(3);
    Tensor dscores = Tensor::zeros(DType::f32, to_bias ? in[0].shape() : Shape{0, 0, experts});
    each_token(c, in, [&](std::int64_t t, std::span<float> scores, std::span<float> d) {
      if (!counts(in, t)) return;
      probability_backward(in, t, row(prob, t), row(dprob, t / length), scores, d, row(grads[0], t));
      if (to_bias) std::copy(d.begin(), d.end(), row(dscores, t).begin());
    });
    if (to_bias) {
      grads[3] = Tensor::zeros(DType::f32, in[3].shape());
      for (std::int64_t i = 0; i < dscores.size() && !c.abstract(); ++i)
        grads[3].data<float>()[i % experts] += dscores.data<float>()[i];
    }
    return grads;
  }

 private:
  double factor(const ArrayInfo& info) const {
    const auto experts = static_cast<double>(config_.experts);
    return config_.balance_weight * experts * experts / (experts * static_cast<double>(info.shape[0]));
  }
  static std::span<float> row(const Tensor& x, std::int64_t t) {
    return x.span<float>().subspan(static_cast<std::size_t>(t * x.shape().back()),
                                   static_cast<std::size_t>(x.shape().back()));
  }
  bool counts(std::span<const Tensor> in, std::int64_t token) const {
    return config_.compat || in[2].data<std::int32_t>()[token] != 0;
  }

  // prob [B,S,E]: the router's normalised scores; under compat a softmax of what the gate returns.
  Tensor probabilities(Context& c, std::span<const Tensor> in) const {
    Tensor prob(DType::f32, in[0].shape());
    const bool softmax = config_.compat || config_.score == RouterScore::none;
    each_token(c, in, [&](std::int64_t t, std::span<float> s, std::span<float>) {
      router_scores(config_.score, row(in[0], t), s);
      for (std::size_t e = 0; e < s.size() && in.size() > 3; ++e) s[e] += in[3].data<float>()[e];
      if (softmax) return router_scores(RouterScore::softmax, s, row(prob, t));
      const float sum =
          config_.score == RouterScore::sigmoid ? std::accumulate(s.begin(), s.end(), 0.0f) : 1.0f;
      std::transform(s.begin(), s.end(), row(prob, t).begin(), [=](float v) { return v / sum; });
    });
    return prob;
  }
  // Adds the gradients of one token's logits and of the bias. `dscores` and `scores` are scratch.
  void probability_backward(std::span<const Tensor> in, std::int64_t t, std::span<const float> p,
                            std::span<const float> dprob, std::span<float> scores, std::span<float> dscores,
                            std::span<float> dlogits) const {
    router_scores(config_.score, row(in[0], t), scores);
    std::fill(dscores.begin(), dscores.end(), 0.0f);
    if (config_.compat || config_.score == RouterScore::none) {
      router_scores_backward(RouterScore::softmax, p, dprob, dscores);
    } else if (config_.score == RouterScore::sigmoid) {
      const float sum = std::accumulate(scores.begin(), scores.end(), 0.0f);
      const float mean = mean_from_first(p, dprob);
      for (std::size_t e = 0; e < p.size(); ++e) dscores[e] = (dprob[e] - dprob[0] - mean) / sum;
    } else {
      std::copy(dprob.begin(), dprob.end(), dscores.begin());
    }
    router_scores_backward(config_.score, scores, dscores, dlogits);
  }
  // Calls visit(token, scratch [E], scratch [E]) for every local token.
  template <typename Visit>
  void each_token(Context& c, std::span<const Tensor> in, Visit visit) const {
    c.pool->for_range(in[0].dim(0) * in[0].dim(1), 64, [&](std::int64_t begin, std::int64_t end) {
      const auto experts = static_cast<std::size_t>(config_.experts);
      std::vector<float> scratch(2 * experts);
      for (std::int64_t t = begin; t < end; ++t) {
        visit(t, std::span(scratch).first(experts), std::span(scratch).last(experts));
      }
    });
  }

  std::vector<SequenceStatistics> statistics(Context& c, std::span<const Tensor> in, const Tensor& prob,
                                             const ArrayInfo& info) const {
    const auto experts = static_cast<std::size_t>(config_.experts), width = 2 * experts + 1;
    const std::int64_t batch = in[0].dim(0), length = in[0].dim(1), slots = in[1].shape().back();
    std::vector<double> sums(static_cast<std::size_t>(batch) * width, 0.0);  // counts, probabilities, tokens
    for (std::int64_t t = 0; t < batch * length && !c.abstract(); ++t) {
      if (!counts(in, t)) continue;
      double* at = sums.data() + static_cast<std::size_t>(t / length) * width;
      for (std::int64_t k = 0; k < slots; ++k) at[in[1].data<std::int32_t>()[t * slots + k]] += 1;
      const auto p = row(prob, t);
      for (std::size_t e = 0; e < experts; ++e) at[experts + e] += static_cast<double>(p[e]);
      at[2 * experts] += 1;
    }
    if (const Axes& axes = info.sharding.dims[1]; !axes.empty()) {
      c.comm->all_reduce_f64(c.group(axes), joined(axes), sums.data(),
                             static_cast<std::int64_t>(sums.size()));
    }
    std::vector<SequenceStatistics> result(static_cast<std::size_t>(batch));
    for (std::size_t b = 0; b < result.size(); ++b) {
      const double* at = sums.data() + b * width;
      const double tokens = std::max(1.0, at[2 * experts]);
      result[b].tokens = tokens;
      for (std::size_t e = 0; e < experts; ++e) {
        result[b].density.push_back(at[e] / tokens);
        result[b].prob.push_back(at[experts + e] / tokens);
      }
    }
    return result;
  }
  MoeConfig config_;
};

}  // namespace

Array balance_loss(Context& context, const MoeConfig& config, const Array& logits, const Array& bias,
                   const Routing& routing, const Array& segments) {
  std::vector<Array> inputs{logits, routing.ids, segments};
  if (config.compat && bias.defined()) inputs.push_back(bias);
  return reshard(context, apply(context, std::make_shared<BalanceLossOp>(config), inputs).front(),
                 Sharding{});
}

std::vector<double> count_rows(const MoeConfig& config, const Tensor& ids, const Tensor& segments) {
  std::vector<double> counts(static_cast<std::size_t>(config.experts), 0.0);
  const std::int64_t slots = ids.shape().back();
  if (ids.abstract()) return counts;
  for (std::int64_t r = 0; r < ids.size(); ++r) {
    if (!config.compat && segments.data<std::int32_t>()[r / slots] == 0) continue;
    counts[static_cast<std::size_t>(ids.data<std::int32_t>()[r])] += 1;
  }
  return counts;
}

std::vector<float> bias_increment(std::span<const double> rows, double rate) {
  const double mean = std::accumulate(rows.begin(), rows.end(), 0.0) / static_cast<double>(rows.size());
  std::vector<float> result;
  for (double load : rows)
    result.push_back(static_cast<float>(load < mean ? rate : load > mean ? -rate : 0.0));
  return result;
}

}  // namespace switchyard

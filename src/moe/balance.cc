#include "moe/balance.h"

#include <numeric>

#include "kernels/moe/balance.h"
#include "kernels/pointwise/strided_copy.h"
#include "moe/router.h"
#include "ops/reshard.h"

namespace switchyard {
namespace {

class BalanceLossOp : public Op {
 public:
  BalanceLossOp(const MoeConfig& config, const MoeExecution& execution)
      : experts_(config.experts),
        score_(config.score),
        weight_(execution.balance_weight /
                (execution.balance.divide_by_slots ? static_cast<double>(config.slots) : 1.0)),
        parts_(execution.balance.by_parts && execution.sparse ? execution.token_chunks : 1),
        rule_(execution.balance) {}
  std::string_view name() const override { return "balance_loss"; }

  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    ArrayInfo loss;
    loss.sharding.partial = in[0].sharding.dims[0];  // sequences; a split sequence is summed inside
    return {loss};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo> infos) const override {
    const Tensor loss = c.empty(DType::f32, {});
    balance_loss_value(*c.pool, {statistics(c, in, infos[0]).sums.view(), loss.view(), factor(infos[0])});
    return {loss};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    std::vector<Tensor> in;
    for (std::size_t i = 0; i < call.inputs(); ++i) in.push_back(call.input(i));
    const ArrayInfo& info = call.input_info(0);
    Tensor g = call.grad(0);
    if (const Axes& axes = info.sharding.dims[1]; !axes.empty()) {
      g = c.empty(DType::f32, {});
      strided_copy(*c.pool, call.grad(0).view(), g.view());
      c.comm->all_reduce(c.group(axes), g.view());
    }
    const Statistics whole = statistics(c, in, info);
    std::vector<Tensor> grads(in.size());
    grads[0] = c.empty(DType::f32, in[0].shape());
    const bool to_bias = in.size() > 3 && call.wanted(3);
    if (to_bias) grads[3] = c.empty(DType::f32, in[3].shape());
    balance_loss_backward(*c.pool, {.scores = scores(in),
                                    .segments = counted_segments(in),
                                    .probabilities = in_parts(whole.probabilities.view()),
                                    .sums = whole.sums.view(),
                                    .gradient = g.view(),
                                    .dlogits = in_parts(grads[0].view()),
                                    .dbias = to_bias ? grads[3].view() : TensorView(),
                                    .factor = factor(info)});
    return grads;
  }

 private:
  struct Statistics {
    Tensor probabilities;  // [B,S,E] f32, of local tokens
    Tensor sums;           // [B,2E+1] f64, of whole sequences
  };

  double factor(const ArrayInfo& info) const {
    const auto experts = static_cast<double>(experts_);
    return weight_ * experts * experts / (experts * static_cast<double>(parts_ * info.shape[0]));
  }
  // Views x [B,S,...] so that each part of a sequence is a sequence of its own.
  TensorView in_parts(const TensorView& x) const {
    Shape shape = x.shape();
    shape[0] *= parts_, shape[1] /= parts_;
    return x.reshaped(shape);
  }
  BalanceScores scores(std::span<const Tensor> in) const {
    return {.score = score_,
            .softmax_of_scores = rule_.softmax_of_scores || score_ == RouterScore::none,
            .logits = in_parts(in[0].view()),
            .bias = in.size() > 3 ? in[3].view() : TensorView()};
  }
  TensorView counted_segments(std::span<const Tensor> in) const {
    return rule_.count_padding ? TensorView() : in_parts(in[2].view());
  }
  Statistics statistics(Context& c, std::span<const Tensor> in, const ArrayInfo& info) const {
    const Statistics result{c.empty(DType::f32, in[0].shape()),
                            c.empty(DType::f64, {in[0].dim(0) * parts_, 2 * experts_ + 1})};
    balance_statistics(*c.pool, {.scores = scores(in),
                                 .ids = in_parts(in[1].view()),
                                 .segments = counted_segments(in),
                                 .probabilities = in_parts(result.probabilities.view()),
                                 .sums = result.sums.view()});
    if (const Axes& axes = info.sharding.dims[1]; !axes.empty())
      c.comm->all_reduce(c.group(axes), result.sums.view());
    return result;
  }

  std::int64_t experts_;
  RouterScore score_;
  double weight_;
  std::int64_t parts_;  // of a sequence
  BalanceRule rule_;
};

// The K best scores of each token, whatever bias and groups say: i32 [B,S,K].
Array best_scores(Context& context, const MoeConfig& config, const Array& logits) {
  MoeConfig plain = config;
  plain.bias = plain.random_routing = false;
  plain.groups = plain.kept_groups = 0;
  NoGrad no_grad(context);
  return route(context, plain, logits, Array(), 0, 0, 0, Tensor()).ids;
}

}  // namespace

Array balance_loss(Context& context, const MoeConfig& config, const MoeExecution& execution,
                   const Array& logits, const Array& bias, const Routing& routing, const Array& segments) {
  std::vector<Array> inputs{logits, routing.ids, segments};
  if (execution.balance.of_best_scores) inputs[1] = best_scores(context, config, logits);
  if (execution.balance.biased && bias.defined()) inputs.push_back(bias);
  return reshard(context, apply(context, std::make_shared<BalanceLossOp>(config, execution), inputs).front(),
                 Sharding{});
}

Tensor count_rows(Context& context, const MoeConfig& config, const MoeExecution& execution, const Tensor& ids,
                  const Tensor& segments) {
  const Tensor counts = context.empty(DType::i32, {config.experts});
  count_choices(*context.pool, {ids.view(), execution.balance.count_padding ? TensorView() : segments.view(),
                                counts.view()});
  return counts;
}

void read_loads(Context& context, std::span<LayerLoad> loads) {
  std::vector<LayerLoad*> counted;
  for (LayerLoad& load : loads) {
    if (load.counted.defined()) counted.push_back(&load);
  }
  if (counted.empty()) return;
  const std::int64_t experts = counted[0]->counted.size(), layers = std::ssize(counted);
  const Tensor together = context.empty(DType::i32, {layers, experts});
  for (std::int64_t i = 0; i < layers; ++i) {
    strided_copy(*context.pool, counted[static_cast<std::size_t>(i)]->counted.view(),
                 together.view().rows(i, i + 1).reshaped({experts}));
  }
  const Tensor host = read_back(context, together, "loads of experts", [&] {
    Tensor none(Memory(), DType::i32, together.shape());
    none.fill_zero();
    return none;
  });
  const std::int32_t* count = host.data<std::int32_t>();
  for (LayerLoad* const load : counted) {
    load->rows.assign(count, count + experts);
    load->counted = Tensor();
    count += experts;
  }
}

std::vector<float> bias_increment(std::span<const double> rows, double rate) {
  const double mean = std::accumulate(rows.begin(), rows.end(), 0.0) / static_cast<double>(rows.size());
  std::vector<float> result;
  for (double load : rows)
    result.push_back(static_cast<float>(load < mean ? rate : load > mean ? -rate : 0.0));
  return result;
}

}  // namespace switchyard

#include "moe/router.h"

#include "core/rng.h"
#include "ops/basic.h"
#include "ops/einsum.h"

namespace switchyard {
namespace {

class RouteOp : public Op {
 public:
  RouteOp(const MoeConfig& config, std::int64_t step, std::int64_t layer, std::int64_t first_row,
          Tensor replayed, Tensor segments)
      : rule_(routing_rule(config)),
        slots_(config.slots),
        first_row_(first_row),
        replayed_(std::move(replayed)),
        segments_(std::move(segments)) {
    key_ = rng_fold_in(rng_fold_in(rng_key(config.random_seed), static_cast<std::uint32_t>(step)),
                       static_cast<std::uint32_t>(layer));
  }
  std::string_view name() const override { return "route"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    ArrayInfo weights = in[0];
    weights.shape.back() = weights.local.back() = slots_;
    ArrayInfo ids = weights;
    ids.dtype = DType::i32;
    return {ids, weights};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo> infos) const override {
    const Tensor& logits = in[0];
    const Shape shape{logits.dim(0), logits.dim(1), slots_};
    const Tensor ids = c.empty(DType::i32, shape), weights = c.empty(DType::f32, shape);
    const Shape offset = local_offset(*c.mesh, c.rank, infos[0].shape, infos[0].sharding);
    switchyard::route(*c.pool, {.rule = rule_,
                                .logits = logits.view(),
                                .bias = in.size() > 1 ? in[1].view() : TensorView(),
                                .choices = replayed_.view(),
                                .random = {key_, first_row_ + offset[0], offset[1], infos[0].shape[1]},
                                .segments = segments_.view(),
                                .ids = ids.view(),
                                .weights = weights.view()});
    return {ids, weights};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    std::vector<Tensor> grads(call.inputs());
    if (!call.grad(1).defined()) return grads;
    const Tensor logits = call.input(0), bias = call.inputs() > 1 ? call.input(1) : Tensor(),
                 ids = call.output(0), weights = call.output(1);
    grads[0] = c.empty(DType::f32, logits.shape());
    if (bias.defined() && call.wanted(1) && weights_have_bias(rule_))
      grads[1] = c.empty(DType::f32, bias.shape());
    route_backward(*c.pool, {.rule = rule_,
                             .logits = logits.view(),
                             .bias = bias.view(),
                             .choices = replayed_.view(),
                             .ids = ids.view(),
                             .weights = weights.view(),
                             .dweights = call.grad(1).view(),
                             .dlogits = grads[0].view(),
                             .dbias = grads.size() > 1 ? grads[1].view() : TensorView()});
    return grads;
  }
  std::uint32_t needs_outputs() const override { return 3; }

 private:
  RoutingRule rule_;
  std::int64_t slots_, first_row_;
  Tensor replayed_, segments_;
  RngKey key_;
};

}  // namespace

RoutingRule routing_rule(const MoeConfig& config) {
  return {.score = config.score,
          .softmax_over_selected = config.softmax_over_selected,
          .normalise = config.normalise,
          .normalise_epsilon = config.normalise_epsilon,
          .scaling = config.scaling,
          .choose_by_logit = config.choose_by_logit,
          .weights_include_bias = config.weights_include_bias,
          .groups = config.groups,
          .kept_groups = config.kept_groups,
          .by_two_best = config.groups_by_two_best,
          .random = config.random_routing,
          .given_as_maxtext = config.given_as_maxtext};
}

Array gate_logits(Context& context, const MoeExecution& execution, const Array& x,
                  const MoeWeights& weights) {
  const DType dtype = execution.float32_gate_logits ? DType::f32 : x.dtype();
  const Sharding want{{x.sharding().dims[0], x.sharding().dims[1], {}}, {}};
  Linear gate = weights.gate;
  gate.weight = cast(context, gate.weight, dtype);
  Array logits = gate.project(context, "BSM,ME->BSE", cast(context, x, dtype), &want);
  if (weights.logit_bias.defined()) logits = add_bias(context, logits, weights.logit_bias);
  return cast(context, logits, DType::f32);
}

Tensor choices_of_router(Context& context, const MoeConfig& config, const Array& logits, const Array& bias,
                         std::int64_t step, std::int64_t layer, std::int64_t first_row) {
  std::vector<Tensor> inputs{logits.tensor()};
  std::vector<ArrayInfo> infos{logits.info()};
  if (bias.defined()) {
    inputs.push_back(bias.tensor());
    infos.push_back(bias.info());
  }
  const RouteOp op(config, step, layer, first_row, {}, {});
  return inside_op(context, "route", "forward", [&] { return op.forward(context, inputs, infos)[0]; });
}

Routing route(Context& context, const MoeConfig& config, const Array& logits, const Array& bias,
              std::int64_t step, std::int64_t layer, std::int64_t first_row, const Tensor& replayed,
              const Tensor& segments) {
  std::vector<Array> inputs{logits};
  if (bias.defined()) inputs.push_back(bias);
  const Tensor choices = replayed.defined() ? to_device(context.memory, replayed) : Tensor();
  auto out =
      apply(context, std::make_shared<RouteOp>(config, step, layer, first_row, choices, segments), inputs);
  return {always_keep(out[0]), always_keep(out[1])};
}

}  // namespace switchyard

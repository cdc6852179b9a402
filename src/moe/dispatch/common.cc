#include "moe/dispatch/common.h"

#include "moe/expert_biases.h"
#include "moe/expert_mlp.h"
#include "ops/basic.h"
#include "ops/reshard.h"

namespace switchyard {
namespace {

// Gathers experts' weights [E,inputs,outputs], with their biases and adapters, into the given layout.
Linear gathered(Context& context, const Linear& linear, const Axes& experts, const Axes& inputs,
                const Axes& outputs) {
  const auto laid_out = [&](const Array& x, std::initializer_list<Axes> dims) {
    return x.defined() ? reshard(context, x, Sharding{dims, {}}) : x;
  };
  Linear here = linear;
  here.weight = laid_out(linear.weight, {experts, inputs, outputs});
  here.bias = laid_out(linear.bias, {experts, outputs});
  if (linear.adapter) {
    here.adapter->a = laid_out(linear.adapter->a, {experts, inputs, {}});
    here.adapter->b = laid_out(linear.adapter->b, {experts, {}, outputs});
  }
  return here;
}

}  // namespace

Axes expert_axes(const Context& context, std::int64_t experts) {
  return context.rules->sharding({"activation_exp"}, {experts}).dims[0];
}

Axes shared_axes(const Sharding& x, const Axes& axes) {
  Axes shared;
  for (const Axis axis : axes) {
    if (x.dims[0].contains(axis) || x.dims[1].contains(axis)) shared.push_back(axis);
  }
  return shared;
}

std::vector<Array> chunks_of(Context& context, const DispatchCall& call) {
  if (call.execution.emb_chunks == 1) return {call.x};
  return chunk_last(context, call.x, call.execution.emb_chunks);
}

MoeWeights gather_expert_weights(Context& context, const DispatchCall& call) {
  const Axes experts = expert_axes(context, call.config.experts);
  Axes hidden =
      context.rules->sharding({"", "activation_mlp_moe"}, {1, call.weights.wo.weight.shape()[1]}).dims[1];
  // An axis that splits experts or tokens cannot split H too.
  const Axes of_tokens = shared_axes(call.x.sharding(), hidden);
  erase_if(hidden, [&](Axis axis) { return experts.contains(axis) || of_tokens.contains(axis); });
  MoeWeights local = call.weights;
  local.wi_0 = gathered(context, call.weights.wi_0, experts, {}, hidden);
  const bool one_a = share_a(call.weights.wi_0, call.weights.wi_1);
  Linear up = call.weights.wi_1;
  if (one_a) up.adapter->a = {};
  local.wi_1 = gathered(context, up, experts, {}, hidden);
  if (one_a) local.wi_1.adapter->a = local.wi_0.adapter->a;
  local.wo = gathered(context, call.weights.wo, experts, hidden, {});
  return local;
}

Sharding partial_output(const Sharding& tokens, const MoeWeights& local, const Axes& also) {
  Sharding result = tokens;
  result.partial = also;
  const Axes& hidden = local.wi_0.weight.sharding().dims[2];
  result.partial.insert(result.partial.end(), hidden.begin(), hidden.end());
  return result;
}

double over_balanced_share(std::int64_t rows, std::int64_t all, std::int64_t ranks) {
  return all == 0 ? 0.0 : static_cast<double>(rows) * static_cast<double>(ranks) / static_cast<double>(all);
}

Sharding activation_sharding(const Context& c, const DispatchCall& call, const Shape& shape,
                             std::string_view length) {
  Sharding s = c.rules->sharding({"activation_exp", "activation_batch_moe", length, "activation_mlp"}, shape);
  if (call.execution.dispatch_without_expert_axes) {
    const Axes experts = expert_axes(c, call.config.experts);
    erase_if(s.dims[1], [&](Axis axis) { return experts.contains(axis); });
    s.dims[0] = experts;
  }
  return s;
}

Array activation(Context& context, const DispatchCall& call, const Array& gate, const Array& up,
                 const Array& weights, const Sharding& layout) {
  if (call.config.plain_experts()) return weighted_swiglu(context, gate, up, weights);
  const Sharding of_biases{{layout.dims[0], layout.dims[3]}, {}};
  const auto laid_out = [&](const Array& bias) {
    return bias.defined() ? reshard(context, bias, of_biases) : bias;
  };
  return expert_gate(context, call.config.gate_form(), gate, up, laid_out(call.weights.wi_0.bias),
                     laid_out(call.weights.wi_1.bias), {{}, weights});
}

}  // namespace switchyard

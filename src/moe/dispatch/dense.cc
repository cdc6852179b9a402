// Dense path: every expert on every token.
//
// The products are einsums over whole tensors, so the layout of the expert dim decides what moves: the rules
// give the expert axes to the batch and all expert weights are gathered, or, with
// moe_dispatch_no_expert_sharding, E keeps them and the tokens move. Expert activations are laid out E, B, S
// so that each expert is one matrix product.
#include "kernels/moe/dense_weights.h"
#include "moe/dispatch/common.h"
#include "moe/rows.h"
#include "ops/basic.h"
#include "ops/einsum.h"
#include "ops/reshard.h"

namespace switchyard {
namespace {

// Routing weights [B,S,K] -> f32 [E,B,S], zero where the expert was not chosen; repeated choices add up.
class ScatterWeightsOp : public Op {
 public:
  explicit ScatterWeightsOp(std::int64_t experts) : experts_(experts) {}
  std::string_view name() const override { return "scatter_weights"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    ArrayInfo out = in[1];
    auto front = [](auto dims, auto first) {
      dims.pop_back();
      dims.insert(dims.begin(), first);
      return dims;
    };
    out.shape = front(in[1].shape, experts_);
    out.local = front(in[1].local, experts_);
    out.sharding.dims = front(in[1].sharding.dims, Axes{});
    return {out};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    const Tensor out = c.empty(DType::f32, {experts_, in[0].dim(0), in[0].dim(1)});
    dense_weights(*c.pool,
                  {.ids = matrix_of(in[0]), .weights = matrix_of(in[1]), .out = as_table(out.view())});
    return {out};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    const Tensor ids = call.input(0), dweights = c.empty(DType::f32, ids.shape());
    dense_weights_backward(
        *c.pool,
        {.ids = matrix_of(ids), .dout = as_table(call.grad(0).view()), .dweights = matrix_of(dweights)});
    return {Tensor(), dweights};
  }
  std::uint32_t needs_inputs(std::uint32_t) const override { return 1; }

 private:
  // [E,B,S] as [E, tokens].
  TensorView as_table(const TensorView& x) const { return x.reshaped({experts_, x.dim(1) * x.dim(2)}); }
  std::int64_t experts_;
};

}  // namespace

DispatchResult dispatch_dense(Context& context, const DispatchCall& call) {
  const Shape shape{call.config.experts, call.x.shape()[0], call.x.shape()[1],
                    call.weights.wo.weight.shape()[1]};
  const Sharding layout = activation_sharding(context, call, shape, "activation_norm_length_moe");
  const Array x = reshard(context, call.x, Sharding{{layout.dims[1], layout.dims[2], {}}, {}});
  const Array gate =
      checkpoint_name(call.weights.wi_0.project(context, "BSM,EMH->EBSH", x, &layout), "moe_mlpwi_0");
  const Array up =
      checkpoint_name(call.weights.wi_1.project(context, "BSM,EMH->EBSH", x, &layout), "moe_mlpwi_1");
  const Array scattered = apply_one(context, std::make_shared<ScatterWeightsOp>(call.config.experts),
                                    {call.routing.ids, call.routing.weights});
  const Array weights =
      reshard(context, scattered, Sharding{{layout.dims[0], layout.dims[1], layout.dims[2]}, {}});
  const Array hidden = activation(context, call, gate, up, weights, layout);
  Array y = call.weights.wo.project(context, "EBSH,EHM->BSM", hidden, &call.x.sharding());
  if (call.config.expert_bias) {
    const Array bias = cast(context, call.weights.wo.bias, DType::f32);
    y = add(context, y,
            cast(context, einsum(context, "EBS,EM->BSM", weights, bias, &call.x.sharding()), y.dtype()));
  }
  y = checkpoint_name(y, "moe_mlpwo");
  return {y, std::vector<double>(static_cast<std::size_t>(call.config.experts), 0.0), {}};
}

}  // namespace switchyard

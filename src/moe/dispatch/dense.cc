// Dense paths: every expert on every token, and a capacity per sequence and expert.
//
// Both are einsums over whole tensors, so the layout of the expert dim decides what moves: the rules give the
// expert axes to the batch and all expert weights are gathered, or, with moe_dispatch_no_expert_sharding, E
// keeps them and the tokens move. Expert activations are laid out E, B, C so that each expert is one matrix
// product.
#include <algorithm>
#include <cmath>

#include "kernels/moe/dense_weights.h"
#include "kernels/moe/plan_rows.h"
#include "kernels/moe/ragged_rows.h"
#include "moe/dispatch/dispatch.h"
#include "moe/expert_biases.h"
#include "moe/expert_mlp.h"
#include "ops/basic.h"
#include "ops/einsum.h"
#include "ops/reshard.h"

namespace switchyard {
namespace {

// Layout of [E,B,S or C,H] activations.
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

// What is gated of gate and up [E,B,S or C,H], laid out as `layout`, times weights [E,B,S or C].
Array activation(Context& context, const DispatchCall& call, const Array& gate, const Array& up,
                 const Array& weights, const Sharding& layout) {
  if (call.config.plain_experts()) return weighted_swiglu(context, gate, up, weights);
  const Sharding of_biases{{layout.dims[0], layout.dims[3]}, {}};
  const auto laid_out = [&](const Array& bias) {
    return bias.defined() ? reshard(context, bias, of_biases) : bias;
  };
  return expert_gate(context, call.config, gate, up, laid_out(call.weights.wi_0_bias),
                     laid_out(call.weights.wi_1_bias), {{}, weights});
}

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
  std::uint32_t needs_inputs() const override { return 1; }

 private:
  // [E,B,S] as [E, tokens].
  TensorView as_table(const TensorView& x) const { return x.reshaped({experts_, x.dim(1) * x.dim(2)}); }
  std::int64_t experts_;
};

// Places under the capacity (plan_places): rows, tokens i32 [E,B,C], position i32 [B,S,K], dropped i32 [E].
// They number the rows, tokens and places of this rank, so they stay in the layout that they have.
class PlanCapacityOp : public Op {
 public:
  PlanCapacityOp(std::int64_t experts, std::int64_t capacity) : experts_(experts), capacity_(capacity) {}
  std::string_view name() const override { return "plan_capacity"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    ArrayInfo rows = in[0];
    rows.shape = {experts_, in[0].shape[0], capacity_};
    rows.local = {experts_, in[0].local[0], capacity_};
    rows.sharding.dims = {{}, in[0].sharding.dims[0], {}};
    return {rows, rows, in[0], ragged_info(DType::i32, 1)};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    const Shape places{experts_, in[0].dim(0), capacity_};
    const Tensor rows = c.empty(DType::i32, places), tokens = c.empty(DType::i32, places),
                 position = c.empty(DType::i32, in[0].shape()), dropped = c.empty(DType::i32, {experts_});
    plan_places(*c.pool, {.ids = in[0].view(),
                          .rows = rows.view(),
                          .tokens = tokens.view(),
                          .position = position.view(),
                          .dropped = dropped.view()});
    return {rows, tokens, position, dropped};
  }
  std::vector<Tensor> backward(Context&, const BackwardCall&) const override { return {Tensor()}; }
  bool differentiable() const override { return false; }

 private:
  std::int64_t experts_, capacity_;
};

// Rows of `width` numbers to other places. inputs: x, from (for each row of the result the rows of x that add
// up to it, -1 for none) and to (the same for each row of x): each is the other's transpose.
class MoveRowsOp : public Op {
 public:
  MoveRowsOp(std::string_view name, std::int64_t width, ArrayInfo result)
      : name_(name), width_(width), result_(std::move(result)) {}
  std::string_view name() const override { return name_; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo>) const override {
    return {result_};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    return {moved(c, in[0], in[1], result_.local)};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    return {moved(c, call.grad(0), call.input(2), call.input_info(0).local), Tensor(), Tensor()};
  }
  std::uint32_t needs_inputs() const override { return 4; }

 private:
  Tensor moved(Context& c, const Tensor& x, const Tensor& from, const Shape& shape) const {
    const Tensor out = c.empty(x.dtype(), shape);
    const auto rows_of = [&](const Tensor& t) {
      return t.view().reshaped({t.size() / std::max<std::int64_t>(1, width_), width_});
    };
    const TensorView sums = rows_of(out);
    const std::int64_t rows = sums.dim(0), slots = rows == 0 ? 1 : from.size() / rows;
    ragged_gather_reduce(
        *c.pool, {.x = rows_of(x), .position = from.view().reshaped({rows, slots}), .w = {}, .out = sums});
    return out;
  }

  std::string_view name_;  // of a literal
  std::int64_t width_;
  ArrayInfo result_;
};

}  // namespace

DispatchResult dispatch_dense(Context& context, const DispatchCall& call) {
  const Array& wi = call.weights.wi_0;
  const Shape shape{call.config.experts, call.x.shape()[0], call.x.shape()[1], call.weights.wo.shape()[1]};
  const Sharding layout = activation_sharding(context, call, shape, "activation_norm_length_moe");
  const Array x = reshard(context, call.x, Sharding{{layout.dims[1], layout.dims[2], {}}, {}});
  const Array gate = checkpoint_name(einsum(context, "BSM,EMH->EBSH", x, wi, &layout), "moe_mlpwi_0");
  const Array up =
      checkpoint_name(einsum(context, "BSM,EMH->EBSH", x, call.weights.wi_1, &layout), "moe_mlpwi_1");
  const Array scattered = apply_one(context, std::make_shared<ScatterWeightsOp>(call.config.experts),
                                    {call.routing.ids, call.routing.weights});
  const Array weights =
      reshard(context, scattered, Sharding{{layout.dims[0], layout.dims[1], layout.dims[2]}, {}});
  const Array hidden = activation(context, call, gate, up, weights, layout);
  Array y = einsum(context, "EBSH,EHM->BSM", hidden, call.weights.wo, &call.x.sharding());
  if (call.config.expert_bias) {
    const Array bias = cast(context, call.weights.wo_bias, DType::f32);
    y = add(context, y,
            cast(context, einsum(context, "EBS,EM->BSM", weights, bias, &call.x.sharding()), y.dtype()));
  }
  y = checkpoint_name(y, "moe_mlpwo");
  return {y, std::vector<double>(static_cast<std::size_t>(call.config.experts), 0.0), {}};
}

DispatchResult dispatch_capacity(Context& context, const DispatchCall& call) {
  const MoeConfig& config = call.config;
  const double factor = call.execution.capacity_factor;
  const std::int64_t batch = call.x.shape()[0], length = call.x.shape()[1];
  const double share =
      std::ceil(static_cast<double>(length * config.slots) / static_cast<double>(config.experts));
  const auto capacity = static_cast<std::int64_t>(std::max(share * factor, factor));
  const Sharding whole_sequence{{call.x.sharding().dims[0], {}, {}},
                                {}};  // places are counted along whole sequences
  const Array x = reshard(context, call.x, whole_sequence);
  const Array ids = reshard(context, call.routing.ids, whole_sequence);
  auto plan = apply(context, std::make_shared<PlanCapacityOp>(config.experts, capacity), std::span(&ids, 1));
  const Array rows = always_keep(plan[0]), tokens = always_keep(plan[1]), position = always_keep(plan[2]);
  const std::int64_t width = x.shape()[2];
  ArrayInfo in_places = rows.info();
  in_places.dtype = x.dtype();
  in_places.shape.push_back(width);
  in_places.local.push_back(width);
  in_places.sharding.dims.push_back({});
  ArrayInfo weights_in_places = rows.info();
  weights_in_places.dtype = DType::f32;

  const Shape shape{config.experts, batch, capacity, call.weights.wo.shape()[1]};
  const Sharding layout = activation_sharding(context, call, shape, "");
  Sharding places = layout;
  places.dims[3].clear();
  const auto to_places = std::make_shared<MoveRowsOp>("dispatch_places", width, in_places);
  const Array placed = reshard(context, apply_one(context, to_places, {x, tokens, position}), places);
  const Array gate =
      checkpoint_name(einsum(context, "EBCM,EMH->EBCH", placed, call.weights.wi_0, &layout), "moe_mlpwi_0");
  const Array up =
      checkpoint_name(einsum(context, "EBCM,EMH->EBCH", placed, call.weights.wi_1, &layout), "moe_mlpwi_1");
  const Array weights =
      reshard(context,
              apply_one(context, std::make_shared<MoveRowsOp>("place_weights", 1, weights_in_places),
                        {reshard(context, call.routing.weights, whole_sequence), rows, position}),
              Sharding{{layout.dims[0], layout.dims[1], {}}, {}});
  const Array hidden = activation(context, call, gate, up, weights, layout);
  Array down = einsum(context, "EBCH,EHM->EBCM", hidden, call.weights.wo, &places);
  if (call.config.expert_bias) {
    const Array bias = reshard(context, call.weights.wo_bias, Sharding{{places.dims[0], {}}, {}});
    down = add_expert_bias(context, down, bias, {{}, weights}, {});
  }
  down = checkpoint_name(down, "moe_mlpwo");
  const Array home = reshard(context, down, Sharding{{{}, whole_sequence.dims[0], {}, {}}, {}});
  ArrayInfo tokens_again = x.info();
  tokens_again.dtype = home.dtype();
  const auto from_places = std::make_shared<MoveRowsOp>("combine_places", width, tokens_again);
  DispatchResult result{
      apply_one(context, from_places, {home, position, tokens}), {}, whole_sequence.dims[0]};
  const Tensor dropped = read_back(context, plan[3].tensor(), "dropped rows", [&] {
    Tensor none(Memory(), DType::i32, {config.experts});
    none.fill_zero();
    return none;
  });
  for (const std::int32_t n : dropped.span<std::int32_t>()) result.dropped.push_back(n);
  return result;
}

}  // namespace switchyard

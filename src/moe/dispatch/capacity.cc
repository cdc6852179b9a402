// Dense path with a capacity C for each sequence and expert: tokens get one of C places, and tokens without a
// place are dropped. The experts' products are those of the dense path (dense.cc) on [E,B,C,M].
#include <algorithm>

#include "kernels/moe/plan_rows.h"
#include "kernels/moe/ragged_rows.h"
#include "moe/dispatch/common.h"
#include "moe/expert_biases.h"
#include "moe/rows.h"
#include "ops/reshard.h"

namespace switchyard {
namespace {

// Places under the capacity (plan_places): rows, tokens i32 [E,B,C], position i32 [B,S,K], dropped i32 [E].
// They number the rows, tokens and places of this rank, so they stay in the layout that they have.
class PlanCapacityOp : public Op {
 public:
  PlanCapacityOp(std::int64_t experts, std::int64_t capacity, double factor)
      : experts_(experts), capacity_(capacity), factor_(factor) {}
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
                          .assignments = rows.view(),
                          .tokens = tokens.view(),
                          .position = position.view(),
                          .dropped = dropped.view(),
                          .factor = factor_});
    return {rows, tokens, position, dropped};
  }
  bool differentiable() const override { return false; }

 private:
  std::int64_t experts_, capacity_;
  double factor_;
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
  std::uint32_t needs_inputs(std::uint32_t) const override { return 4; }

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

DispatchResult dispatch_capacity(Context& context, const DispatchCall& call) {
  const MoeConfig& config = call.config;
  const double factor = call.execution.capacity_factor;
  const std::int64_t batch = call.x.shape()[0], length = call.x.shape()[1];
  // The capacity of a sequence without padding; plan_places() gives padded sequences fewer places.
  const std::int64_t capacity = places_of(length * config.slots, config.experts, factor);
  const Sharding whole_sequence{{call.x.sharding().dims[0], {}, {}},
                                {}};  // places are counted along whole sequences
  const Array x = reshard(context, call.x, whole_sequence);
  const Array ids = reshard(context, call.routing.ids, whole_sequence);
  auto plan =
      apply(context, std::make_shared<PlanCapacityOp>(config.experts, capacity, factor), std::span(&ids, 1));
  const Array rows = always_keep(plan[0]), tokens = always_keep(plan[1]), position = always_keep(plan[2]);
  const std::int64_t width = x.shape()[2];
  ArrayInfo in_places = rows.info();
  in_places.dtype = x.dtype();
  in_places.shape.push_back(width);
  in_places.local.push_back(width);
  in_places.sharding.dims.push_back({});
  ArrayInfo weights_in_places = rows.info();
  weights_in_places.dtype = DType::f32;

  const Shape shape{config.experts, batch, capacity, call.weights.wo.weight.shape()[1]};
  const Sharding layout = activation_sharding(context, call, shape, "");
  Sharding places = layout;
  places.dims[3].clear();
  const auto to_places = std::make_shared<MoveRowsOp>("dispatch_places", width, in_places);
  const Array placed = reshard(context, apply_one(context, to_places, {x, tokens, position}), places);
  const Array gate =
      checkpoint_name(call.weights.wi_0.project(context, "EBCM,EMH->EBCH", placed, &layout), "moe_mlpwi_0");
  const Array up =
      checkpoint_name(call.weights.wi_1.project(context, "EBCM,EMH->EBCH", placed, &layout), "moe_mlpwi_1");
  const Array weights =
      reshard(context,
              apply_one(context, std::make_shared<MoveRowsOp>("place_weights", 1, weights_in_places),
                        {reshard(context, call.routing.weights, whole_sequence), rows, position}),
              Sharding{{layout.dims[0], layout.dims[1], {}}, {}});
  const Array hidden = activation(context, call, gate, up, weights, layout);
  Array down = call.weights.wo.project(context, "EBCH,EHM->EBCM", hidden, &places);
  if (call.config.expert_bias) {
    const Array bias = reshard(context, call.weights.wo.bias, Sharding{{places.dims[0], {}}, {}});
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

// Dense paths (moe.md §6): every expert on every token, and a capacity per sequence and expert.
//
// Both are einsums over whole tensors, so the layout of the expert dim decides what moves: the rules give the
// expert axes to the batch and all expert weights are gathered, or, with moe_dispatch_no_expert_sharding, E
// keeps them and the tokens move. Expert activations are laid out E, B, C so that each expert is one matrix
// product.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/ragged_rows.h"
#include "moe/dispatch/dispatch.h"
#include "moe/expert_mlp.h"
#include "ops/einsum.h"
#include "ops/reshard.h"

namespace switchyard {
namespace {

constexpr std::int64_t kTokensAtOnce = 1024;

// Layout of [E,B,S or C,H] activations.
Sharding activation_sharding(const Context& c, const MoeConfig& config, const Shape& shape,
                             std::string_view length) {
  Sharding s = c.rules->sharding({"activation_exp", "activation_batch_moe", length, "activation_mlp"}, shape);
  if (config.dispatch_without_expert_axes) {
    const Axes experts = expert_axes(c, config.experts);
    erase_if(s.dims[1], [&](Axis axis) { return experts.contains(axis); });
    s.dims[0] = experts;
  }
  return s;
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
    const std::int64_t slots = in[0].shape().back(), tokens = in[0].size() / slots;
    Tensor out = Tensor::zeros(DType::f32, {experts_, in[0].dim(0), in[0].dim(1)});
    c.pool->for_range(tokens, kTokensAtOnce, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin * slots; r < end * slots; ++r)
        out.data<float>()[in[0].data<std::int32_t>()[r] * tokens + r / slots] += in[1].data<float>()[r];
    });
    return {out};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    const Tensor ids = call.input(0);
    const std::int64_t slots = ids.shape().back(), tokens = ids.size() / slots;
    Tensor dweights(DType::f32, ids.shape());
    c.pool->for_range(tokens, kTokensAtOnce, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin * slots; r < end * slots; ++r)
        dweights.data<float>()[r] =
            call.grad(0).data<float>()[ids.data<std::int32_t>()[r] * tokens + r / slots];
    });
    return {Tensor(), dweights};
  }
  std::uint32_t needs_inputs() const override { return 1; }

 private:
  std::int64_t experts_;
};

// Places under the capacity: rows are admitted token by token, slot by slot.
//   slot_row i32 [E,B,C]: s·K + k of the row in each place, -1 empty;  place i32 [B,S,K]: c of each row, -1
//   dropped.
class PlanCapacityOp : public Op {
 public:
  PlanCapacityOp(std::int64_t experts, std::int64_t capacity) : experts_(experts), capacity_(capacity) {}
  std::string_view name() const override { return "plan_capacity"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    ArrayInfo rows = in[0];
    rows.shape = {experts_, in[0].shape[0], capacity_};
    rows.local = {experts_, in[0].local[0], capacity_};
    rows.sharding.dims = {{}, in[0].sharding.dims[0], {}};
    return {rows, in[0]};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    const std::int64_t batch = in[0].dim(0), per_sequence = in[0].dim(1) * in[0].dim(2);
    Tensor slot_row(DType::i32, {experts_, batch, capacity_}), place(DType::i32, in[0].shape());
    c.pool->for_range(batch, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t b = begin; b < end; ++b) admit(in[0], b, per_sequence, slot_row, place);
    });
    return {slot_row, place};
  }
  std::vector<Tensor> backward(Context&, const BackwardCall&) const override { return {Tensor()}; }
  bool differentiable() const override { return false; }

 private:
  // Fills the places of sequence b.
  void admit(const Tensor& ids, std::int64_t b, std::int64_t per_sequence, const Tensor& slot_row,
             const Tensor& place) const {
    const std::int64_t batch = ids.dim(0);
    for (std::int64_t e = 0; e < experts_; ++e)
      std::fill_n(slot_row.data<std::int32_t>() + (e * batch + b) * capacity_, capacity_, -1);
    std::vector<std::int64_t> used(static_cast<std::size_t>(experts_), 0);
    for (std::int64_t r = 0; r < per_sequence; ++r) {
      const std::int32_t e = ids.data<std::int32_t>()[b * per_sequence + r];
      auto& next = used[static_cast<std::size_t>(e)];
      const bool room = next < capacity_;
      place.data<std::int32_t>()[b * per_sequence + r] = room ? static_cast<std::int32_t>(next) : -1;
      if (room)
        slot_row.data<std::int32_t>()[(e * batch + b) * capacity_ + next++] = static_cast<std::int32_t>(r);
    }
  }
  std::int64_t experts_, capacity_;
};

// tokens [B,S,M] -> places [E,B,C,M], empty ones zero.
Tensor to_places(Context& c, const Tensor& x, const Tensor& slot_row, std::int64_t slots) {
  const std::int64_t m = x.dim(2), batch = x.dim(0), capacity = slot_row.dim(2);
  Tensor out(x.dtype(), {slot_row.dim(0), batch, capacity, m});
  const std::size_t bytes = static_cast<std::size_t>(m) * size_of(x.dtype());
  c.pool->for_range(slot_row.size(), 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int32_t row = slot_row.data<std::int32_t>()[i];
      const std::int64_t b = i / capacity % batch;
      std::byte* to = out.raw() + static_cast<std::size_t>(i) * bytes;
      if (row < 0)
        std::memset(to, 0, bytes);
      else
        std::memcpy(to, x.raw() + static_cast<std::size_t>(b * x.dim(1) + row / slots) * bytes, bytes);
    }
  });
  return out;
}

// places [E,B,C,M] -> the sum of each token's places [B,S,M], in slot order.
Tensor from_places(Context& c, const Tensor& x, const Tensor& ids, const Tensor& place) {
  const std::int64_t m = x.dim(3), batch = x.dim(1), capacity = x.dim(2), slots = ids.dim(2);
  std::vector<std::int32_t> position(static_cast<std::size_t>(ids.size()));
  c.pool->for_range(ids.size(), kTokensAtOnce, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const std::int32_t at = place.data<std::int32_t>()[r];
      const std::int64_t b = r / (ids.dim(1) * slots),
                         row = (ids.data<std::int32_t>()[r] * batch + b) * capacity + at;
      position[static_cast<std::size_t>(r)] = at < 0 ? -1 : static_cast<std::int32_t>(row);
    }
  });
  Tensor sum(x.dtype(), {batch, ids.dim(1), m});
  ragged_gather_reduce(*c.pool, x.dtype(), x.raw(), m, position, slots, 0, x.dim(0) * batch * capacity,
                       nullptr, sum.raw(), x.dtype());
  return sum;
}

class DispatchPlacesOp : public Op {  // inputs: x, ids, slot_row, place
 public:
  std::string_view name() const override { return "dispatch_places"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    ArrayInfo out = in[2];
    out.dtype = in[0].dtype;
    out.shape.push_back(in[0].shape[2]);
    out.local.push_back(in[0].local[2]);
    out.sharding.dims.push_back({});
    return {out};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    return {to_places(c, in[0], in[2], in[1].dim(2))};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    return {from_places(c, call.grad(0), call.input(1), call.input(3)), Tensor(), Tensor(), Tensor()};
  }
  std::uint32_t needs_inputs() const override { return 2 | 8; }
};

class CombinePlacesOp : public Op {  // inputs: places, ids, slot_row, place
 public:
  std::string_view name() const override { return "combine_places"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    ArrayInfo out = in[1];
    out.dtype = in[0].dtype;
    out.shape.back() = in[0].shape[3];
    out.local.back() = in[0].local[3];
    return {out};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    return {from_places(c, in[0], in[1], in[3])};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    return {to_places(c, call.grad(0), call.input(2), call.input_info(1).local[2]), Tensor(), Tensor(),
            Tensor()};
  }
  std::uint32_t needs_inputs() const override { return 4; }
};

class PlaceWeightsOp : public Op {  // weights [B,S,K], slot_row -> [E,B,C] f32, 0 where empty
 public:
  std::string_view name() const override { return "place_weights"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    ArrayInfo out = in[1];
    out.dtype = DType::f32;
    return {out};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    Tensor out = Tensor::zeros(DType::f32, in[1].shape());
    each(c, in[1], in[0].shape(),
         [&](std::int64_t place, std::int64_t row) { out.data<float>()[place] = in[0].data<float>()[row]; });
    return {out};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    Tensor dweights = Tensor::zeros(DType::f32, call.input_info(0).local);
    each(c, call.input(1), dweights.shape(), [&](std::int64_t place, std::int64_t row) {
      dweights.data<float>()[row] = call.grad(0).data<float>()[place];
    });
    return {dweights, Tensor()};
  }
  std::uint32_t needs_inputs() const override { return 2; }

 private:
  template <typename Visit>
  static void each(Context& c, const Tensor& slot_row, const Shape& weights, Visit visit) {
    c.pool->for_range(slot_row.size(), kTokensAtOnce, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int32_t row = slot_row.data<std::int32_t>()[i];
        if (row >= 0) visit(i, i / slot_row.dim(2) % slot_row.dim(1) * weights[1] * weights[2] + row);
      }
    });
  }
};

}  // namespace

DispatchResult dispatch_dense(Context& context, const DispatchCall& call) {
  const Array& wi = call.weights.wi_0;
  const Shape shape{call.config.experts, call.x.shape()[0], call.x.shape()[1], wi.shape()[2]};
  const Sharding layout = activation_sharding(context, call.config, shape, "activation_norm_length_moe");
  const Array x = reshard(context, call.x, Sharding{{layout.dims[1], layout.dims[2], {}}, {}});
  const Array gate = checkpoint_name(einsum(context, "BSM,EMH->EBSH", x, wi, &layout), "moe_mlpwi_0");
  const Array up =
      checkpoint_name(einsum(context, "BSM,EMH->EBSH", x, call.weights.wi_1, &layout), "moe_mlpwi_1");
  const Array scattered = apply_one(context, std::make_shared<ScatterWeightsOp>(call.config.experts),
                                    {call.routing.ids, call.routing.weights});
  const Array weights =
      reshard(context, scattered, Sharding{{layout.dims[0], layout.dims[1], layout.dims[2]}, {}});
  const Array hidden = weighted_swiglu(context, gate, up, weights);
  const Array y = checkpoint_name(
      einsum(context, "EBSH,EHM->BSM", hidden, call.weights.wo, &call.x.sharding()), "moe_mlpwo");
  return {y, std::vector<double>(static_cast<std::size_t>(call.config.experts), 0.0), {}};
}

DispatchResult dispatch_capacity(Context& context, const DispatchCall& call) {
  const MoeConfig& config = call.config;
  const std::int64_t batch = call.x.shape()[0], length = call.x.shape()[1];
  const double share =
      std::ceil(static_cast<double>(length * config.slots) / static_cast<double>(config.experts));
  const auto capacity =
      static_cast<std::int64_t>(std::max(share * config.capacity_factor, config.capacity_factor));
  const Sharding whole_sequence{{call.x.sharding().dims[0], {}, {}},
                                {}};  // places are counted along whole sequences
  const Array x = reshard(context, call.x, whole_sequence);
  const Array ids = reshard(context, call.routing.ids, whole_sequence);
  auto plan = apply(context, std::make_shared<PlanCapacityOp>(config.experts, capacity), std::span(&ids, 1));
  const Array slot_row = always_keep(plan[0]), place = always_keep(plan[1]);

  const Shape shape{config.experts, batch, capacity, call.weights.wi_0.shape()[2]};
  const Sharding layout = activation_sharding(context, config, shape, "");
  Sharding places = layout;
  places.dims[3].clear();
  const Array tokens = reshard(
      context, apply_one(context, std::make_shared<DispatchPlacesOp>(), {x, ids, slot_row, place}), places);
  const Array gate =
      checkpoint_name(einsum(context, "EBCM,EMH->EBCH", tokens, call.weights.wi_0, &layout), "moe_mlpwi_0");
  const Array up =
      checkpoint_name(einsum(context, "EBCM,EMH->EBCH", tokens, call.weights.wi_1, &layout), "moe_mlpwi_1");
  const Array weights = apply_one(context, std::make_shared<PlaceWeightsOp>(),
                                  {reshard(context, call.routing.weights, whole_sequence), slot_row});
  const Array hidden = weighted_swiglu(
      context, gate, up, reshard(context, weights, Sharding{{layout.dims[0], layout.dims[1], {}}, {}}));
  const Array down =
      checkpoint_name(einsum(context, "EBCH,EHM->EBCM", hidden, call.weights.wo, &places), "moe_mlpwo");
  const Array home = reshard(context, down, Sharding{{{}, whole_sequence.dims[0], {}, {}}, {}});
  DispatchResult result{apply_one(context, std::make_shared<CombinePlacesOp>(), {home, ids, slot_row, place}),
                        std::vector<double>(static_cast<std::size_t>(config.experts), 0.0),
                        whole_sequence.dims[0]};
  for (std::int64_t r = 0; r < place.tensor().size() && !context.abstract(); ++r) {
    if (place.tensor().data<std::int32_t>()[r] < 0)
      result.dropped[static_cast<std::size_t>(ids.tensor().data<std::int32_t>()[r])] += 1;
  }
  return result;
}

}  // namespace switchyard

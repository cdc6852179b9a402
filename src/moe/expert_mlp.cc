#include "moe/expert_mlp.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/pointwise/elementwise.h"
#include "kernels/product/gated_down.h"
#include "kernels/product/grouped_matmul.h"
#include "moe/expert_biases.h"
#include "ops/basic.h"
#include "ops/grouped_product.h"
#include "ops/row_adapters.h"

namespace switchyard {
namespace {

// Computes silu(gate) ⊙ up ⊙ the row's weight.
Tensor gated(Context& c, const Tensor& gate, const Tensor& up, const Tensor& weights) {
  const Tensor out = c.empty(gate.dtype(), gate.shape());
  switchyard::swiglu(*c.pool, {gate.view(), up.view(), weights.view(), out.view()});
  return out;
}

// Gradients of gate, up and weights for that of what is gated.
std::vector<Tensor> gated_backward(Context& c, const Tensor& gate, const Tensor& up, const Tensor& weights,
                                   const Tensor& dhidden) {
  const Tensor dgate = c.empty(gate.dtype(), gate.shape()), dup = c.empty(gate.dtype(), gate.shape()),
               dweights = c.empty(DType::f32, weights.shape());
  swiglu_backward(*c.pool, {gate.view(), up.view(), weights.view(), dhidden.view(), dgate.view(), dup.view(),
                            dweights.view()});
  return {dgate, dup, dweights};
}

// Gate and up of the rows, x[tokens] · wi_0 and · wi_1, the rows never copied where the kernel looks them up,
// and with row weights the gated rows, which the kernel makes while the sums are hot. Inputs: wi_0, wi_1
// [G,M,H], sizes [G], x; `planned`: x is in token order, and tokens [R] and position [T·K] follow, else x
// holds the rows [R,M]; `weighted`: row weights [R]. `alone`: no gradients are wanted, and the gated rows are
// all that the op returns. Behind all these, where adapters change the products, the sizes [A] of the groups
// of adapters, and for each of `adapters` its a [A,M,r] and a b [A,r,H] for each product that it changes.
//
// The gated rows are data: their consumer differentiates them through gate and up (GatedDownOp), which
// backward may have kept, so that it keeps no third tensor.
class GateUpOp : public Op {
 public:
  using Products = std::vector<std::size_t>;  // 0: gate, 1: up

  GateUpOp(bool planned, bool weighted, bool alone, std::vector<Products> adapters)
      : planned_(planned), weighted_(weighted), alone_(alone), adapters_(std::move(adapters)) {}
  std::string_view name() const override { return "gate_up"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    return std::vector<ArrayInfo>(outputs(), ragged_info(in[3].dtype, 2));
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    const Tensor &x = in[3], index = planned_ ? in[4] : Tensor(),
                 row_weights = weighted_ ? in[sizes_of_adapters() - 1] : Tensor();
    const Shape shape{planned_ ? index.size() : x.dim(0), outputs_of(in[0])};
    // An adapter of one product alone leaves no place for the pair's activation.
    const bool apart = !adapters_.empty() && adapters_.front().size() < 2;
    std::vector<Tensor> out;
    const std::size_t made = apart && weighted_ ? 3 : outputs();
    for (std::size_t i = 0; i < made; ++i) out.push_back(c.empty(x.dtype(), shape));
    if (apart) {
      products_apart(c, in, index, out);
      if (weighted_)
        switchyard::swiglu(*c.pool, {out[0].view(), out[1].view(), row_weights.view(), out[2].view()});
      if (alone_) return {out[2]};
      return out;
    }
    GmmPairArgs pair{.x = matrix_of(x),
                     .index = index.view(),
                     .rhs_0 = in[0].view(),
                     .rhs_1 = in[1].view(),
                     .group_sizes = in[2].view(),
                     .out_0 = alone_ ? TensorView() : out[0].view(),
                     .out_1 = alone_ ? TensorView() : out[1].view(),
                     .row_weights = row_weights.view(),
                     .hidden = weighted_ ? out.back().view() : TensorView()};
    if (adapters_.empty()) {
      gmm_pair(*c.pool, pair);
      return out;
    }
    const GroupedLowRank both =
        low_rank(adapters_.front(), sizes_of_adapters() + 1, [&](std::size_t i) { return in[i]; });
    const Tensor low = both.low_of(c, as_matrix(x), index);
    pair.group_sizes = both.sizes.view();
    pair.low = low.view();
    pair.low_rhs_0 = both.b[0].view();
    pair.low_rhs_1 = both.b[1].view();
    gmm_pair(*c.pool, pair);
    return out;
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    const Tensor dgate = whole(c, call, 0), dup = whole(c, call, 1);
    std::vector<Tensor> grads(call.inputs());
    if (call.wanted(0) || call.wanted(1)) gradients_of_weights(c, call, dgate, dup, grads);
    std::vector<Tensor> dlow;
    for_each_adapter([&](const Products& products, std::size_t at) {
      const auto part = low_rank(products, at, [&](std::size_t i) { return call.input(i); });
      const std::vector<Tensor> dy = of_products(products, dgate, dup);
      dlow.push_back(part.gradient_of_low(c, dy));
      bool trains = false;
      for (std::size_t i = at; i <= at + products.size(); ++i) trains = trains || call.wanted(i);
      if (!trains) return;
      const Tensor index = planned_ ? call.input(4) : Tensor();
      std::ranges::move(part.gradients(c, as_matrix(call.input(3)), index, dy, dlow.back()),
                        grads.begin() + static_cast<std::ptrdiff_t>(at));
    });
    if (!call.wanted(3)) return grads;
    const Tensor wi_0 = call.input(0), wi_1 = call.input(1), sizes = call.input(2);
    const Tensor drows = c.empty(dgate.dtype(), {dgate.dim(0), inputs_of(wi_0)});
    GmmDlhsPairArgs pair{.dy_0 = dgate.view(),
                         .dy_1 = dup.view(),
                         .rhs_0 = wi_0.view(),
                         .rhs_1 = wi_1.view(),
                         .group_sizes = sizes.view(),
                         .dlhs = drows.view()};
    std::vector<Tensor> of_a;  // alive until the product is made
    for_each_adapter([&](const Products&, std::size_t at) {
      of_a.push_back(call.input(at));
      pair.low[of_a.size() - 1] = {dlow[of_a.size() - 1].view(), of_a.back().view()};
    });
    gmm_dlhs_pair(*c.pool, pair);
    grads[3] = planned_ ? sum_rows(c, drows, call.input(5), call.input_info(3).local) : drows;
    return grads;
  }
  std::uint32_t needs_inputs(std::uint32_t wanted) const override {
    const std::uint32_t adapters = adapters_.empty() ? 0 : ~0u << sizes_of_adapters();
    const bool reads_x = (wanted & (3u | adapters)) != 0, reads_weights = (wanted & 8u) != 0;
    return 4u | adapters | (reads_x ? planned_ ? 0x18u : 8u : 0u) |
           (reads_weights ? planned_ ? 0x23u : 3u : 0u);
  }

 private:
  std::size_t outputs() const { return alone_ ? 1 : weighted_ ? 3 : 2; }
  // The number of the input that has the sizes of the adapters' groups.
  std::size_t sizes_of_adapters() const { return 4u + (planned_ ? 2 : 0) + (weighted_ ? 1 : 0); }
  // Calls body(products, the input that is its a) for each adapter.
  template <typename Body>
  void for_each_adapter(const Body& body) const {
    std::size_t at = sizes_of_adapters() + 1;
    for (const Products& products : adapters_) {
      body(products, at);
      at += 1 + products.size();
    }
  }
  template <typename Input>
  GroupedLowRank low_rank(const Products& products, std::size_t at, const Input& input) const {
    GroupedLowRank part{input(sizes_of_adapters()), input(at), {}};
    for (std::size_t i = 1; i <= products.size(); ++i) part.b.push_back(input(at + i));
    return part;
  }
  // Gate and up, each by itself, into the first two of `out`.
  void products_apart(Context& c, std::span<const Tensor> in, const Tensor& index,
                      std::span<const Tensor> out) const {
    std::vector<bool> adapted(2);
    for_each_adapter([&](const Products& products, std::size_t at) {
      const std::size_t product = products.front();
      const GroupedLowRank part = low_rank(products, at, [&](std::size_t i) { return in[i]; });
      const Tensor low = part.low_of(c, as_matrix(in[3]), index);
      adapted[product] = true;
      gmm(*c.pool, {.lhs = matrix_of(in[3]),
                    .rhs = in[product].view(),
                    .bias = {},
                    .group_sizes = part.sizes.view(),
                    .out = out[product].view(),
                    .index = index.view(),
                    .low = {low.view(), part.b[0].view()}});
    });
    for (std::size_t product = 0; product < 2; ++product) {
      if (adapted[product]) continue;
      gmm(*c.pool, {.lhs = matrix_of(in[3]),
                    .rhs = in[product].view(),
                    .bias = {},
                    .group_sizes = in[2].view(),
                    .out = out[product].view(),
                    .index = index.view()});
    }
  }
  static std::vector<Tensor> of_products(const Products& products, const Tensor& gate, const Tensor& up) {
    std::vector<Tensor> some;
    for (const std::size_t product : products) some.push_back(product == 0 ? gate : up);
    return some;
  }
  static Tensor as_matrix(const Tensor& x) {
    const std::int64_t columns = x.shape().back();
    return x.reshaped({columns == 0 ? 0 : x.size() / columns, columns});
  }
  // The gradient of an output, zeros where none came.
  static Tensor whole(Context& c, const BackwardCall& call, std::size_t output) {
    if (call.grad(output).defined()) return call.grad(output);
    const Tensor& other = call.grad(1 - output);
    return c.zeros(other.dtype(), other.shape());
  }
  void gradients_of_weights(Context& c, const BackwardCall& call, const Tensor& dgate, const Tensor& dup,
                            std::vector<Tensor>& grads) const {
    const Tensor sizes = call.input(2), x = call.input(3), tokens = planned_ ? call.input(4) : Tensor();
    if (!call.wanted(0) || !call.wanted(1)) {
      const std::size_t one = call.wanted(0) ? 0 : 1;
      const Tensor rows = planned_ ? fan_out(c, x, tokens) : x;
      grads[one] = gradient_of_weights(c, rows, one == 0 ? dgate : dup, sizes, call.input_info(one));
      return;
    }
    for (std::size_t i = 0; i < 2; ++i)
      grads[i] = c.empty(call.input_info(i).dtype, call.input_info(i).local);
    gmm_drhs_pair(*c.pool, {.x = matrix_of(x),
                            .index = tokens.view(),
                            .dy_0 = dgate.view(),
                            .dy_1 = dup.view(),
                            .group_sizes = sizes.view(),
                            .drhs_0 = grads[0].view(),
                            .drhs_1 = grads[1].view()});
  }

  bool planned_, weighted_, alone_;
  std::vector<Products> adapters_;
};

class WeightedSwigluOp : public Op {
 public:
  std::string_view name() const override { return "weighted_swiglu"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    return {in[0].ragged ? ragged_info(in[0].dtype, 2) : in[0]};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    return {gated(c, in[0], in[1], in[2])};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    return gated_backward(c, call.input(0), call.input(1), call.input(2), call.grad(0));
  }
};

// The down projection of gated rows: (silu(gate) ⊙ up ⊙ weight of the row) · wo.
// Inputs: gate, up [R,H], row weights [R], wo [G,H,M], sizes [G], and the gated rows, which GateUpOp made:
// forward reads them, backward makes them again from gate and up. Where an adapter changes wo: the sizes [A]
// of the adapters' groups, a [A,H,r] and b [A,r,M].
class GatedDownOp : public Op {
 public:
  std::string_view name() const override { return "gated_down"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    return {ragged_info(in[0].dtype, 2)};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    if (in.size() == kAdapter) return {grouped_product(c, in[5], in[3], in[4])};
    return {grouped_product(c, in[5], in[3], GroupedLowRank{in[6], in[7], {in[8]}})};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    const Tensor sizes = call.input(4);
    const bool adapted = call.inputs() > kAdapter, of_adapter = adapted && (call.wanted(7) || call.wanted(8));
    std::vector<Tensor> grads(call.inputs());
    Tensor dy = call.take_grad(0), dhidden;
    if (!adapted && call.wanted(0) && call.wanted(1) && call.wanted(2) && fused(c, call, dy, grads))
      return grads;
    std::optional<GroupedLowRank> low_rank;
    Tensor dlow;
    if (adapted) {
      low_rank = {call.input(6), call.input(7), {call.input(8)}};
      dlow = low_rank->gradient_of_low(c, {&dy, 1});
    }
    if (call.wanted(0) || call.wanted(1) || call.wanted(2))
      dhidden = gradient_of_rows(c, dy, call.input(3), sizes,
                                 adapted ? GmmLow{dlow.view(), low_rank->a.view()} : GmmLow());
    const Tensor gate = call.input(0), up = call.input(1), row_weights = call.input(2);
    Tensor hidden;
    if (call.wanted(3) || of_adapter) hidden = gated(c, gate, up, row_weights);
    if (call.wanted(3)) grads[3] = gradient_of_weights(c, hidden, dy, sizes, call.input_info(3));
    if (of_adapter) std::ranges::move(low_rank->gradients(c, hidden, {}, {&dy, 1}, dlow), grads.begin() + 7);
    dy = hidden = {};  // before the gradients of gate and up are made
    if (dhidden.defined())
      std::ranges::move(gated_backward(c, gate, up, row_weights, dhidden), grads.begin());
    return grads;
  }
  std::uint32_t needs_inputs(std::uint32_t wanted) const override {
    return 0x1d7u | ((wanted & 7u) != 0 ? 8u : 0u);
  }

 private:
  static constexpr std::size_t kAdapter = 6;  // its first input
  // All gradients with one kernel before the product for wo's; false where there is none.
  static bool fused(Context& c, const BackwardCall& call, const Tensor& dy, std::vector<Tensor>& grads) {
    const Tensor gate = call.input(0), up = call.input(1), row_weights = call.input(2), wo = call.input(3),
                 sizes = call.input(4);
    GatedDownBackwardArgs args{.dy = dy.view(),
                               .wo = wo.view(),
                               .group_sizes = sizes.view(),
                               .gate = gate.view(),
                               .up = up.view(),
                               .row_weights = row_weights.view(),
                               .dgate = {},
                               .dup = {},
                               .hidden = {},
                               .drow_weights = {}};
    if (!fuses_gated_down_backward(args)) return false;
    const auto like = [&](const Tensor& x) { return c.empty(x.dtype(), x.shape()); };
    grads[0] = like(gate);
    grads[1] = like(up);
    grads[2] = like(row_weights);
    const Tensor hidden = like(gate);
    args.dgate = grads[0].view();
    args.dup = grads[1].view();
    args.drow_weights = grads[2].view();
    args.hidden = hidden.view();
    gated_down_backward(*c.pool, args);
    if (call.wanted(3)) grads[3] = gradient_of_weights(c, hidden, dy, sizes, call.input_info(3));
    return true;
  }
};

}  // namespace

Array weighted_swiglu(Context& context, const Array& gate, const Array& up, const Array& weights) {
  return never_save(apply_one(context, std::make_shared<WeightedSwigluOp>(), {gate, up, weights}));
}

namespace {

// The experts' gate and up projections, before the activation, and the gated rows, if they came with them:
// where no gradients are wanted, these alone.
struct UpProjections {
  Array gate, up, hidden;
};

// `of_adapters`: the sizes of the groups of rows that the adapters are stacked by (Linear::grouped_apply).
UpProjections whole_up_projections(Context& context, const Array& x, const RowPlan& plan,
                                   const Array& of_adapters, const Array& row_weights, const Linear& wi_0,
                                   const Linear& wi_1) {
  const bool planned = plan.tokens.defined(), weighted = row_weights.defined();
  std::vector<Array> inputs{wi_0.weight, wi_1.weight, plan.sizes, x};
  if (planned) inputs.insert(inputs.end(), {plan.tokens, plan.position});
  if (weighted) inputs.push_back(row_weights);
  std::vector<GateUpOp::Products> adapters;
  if (wi_0.adapter || wi_1.adapter) inputs.push_back(of_adapters);
  const auto adapt = [&](const Linear& layer, std::size_t product, bool has_a) {
    if (!layer.adapter) return;
    if (has_a) {
      adapters.back().push_back(product);
    } else {
      adapters.push_back({product});
      inputs.push_back(layer.adapter->a_in(context, x.dtype()));
    }
    inputs.push_back(layer.adapter->b_in(context, x.dtype()));
  };
  adapt(wi_0, 0, false);
  adapt(wi_1, 1, share_a(wi_0, wi_1));
  const bool alone = weighted && !context.grad_enabled;
  const auto op = std::make_shared<GateUpOp>(planned, weighted, alone, std::move(adapters));
  const auto out = apply(context, op, inputs);
  if (alone) return {{}, {}, out[0]};
  if (weighted) {
    never_save(out[2]).value()->requires_grad = false;
    return {out[0], out[1], out[2]};
  }
  return {out[0], out[1], {}};
}

// The sums of the products of all chunks of x, each made as soon as its x is there.
UpProjections chunked_up_projections(Context& context, const ChunkOf& x, std::int64_t chunks,
                                     const RowPlan& plan, const Array& of_adapters, const Linear& wi_0,
                                     const Linear& wi_1) {
  struct Sum {
    std::vector<Array> weights;  // of each chunk
    Array value;
  };
  const auto sum_of = [&](const Array& weight) { return Sum{chunk_sequence(context, weight, chunks), {}}; };
  Sum gate = sum_of(wi_0.weight), up = sum_of(wi_1.weight), low_gate, low_up;
  const bool one_a = share_a(wi_0, wi_1);
  for (std::int64_t i = 0; i < chunks; ++i) {
    const Array piece = x(i), rows = plan.tokens.defined() ? gather_rows(context, piece, plan) : piece;
    if (i == 0) {
      if (wi_0.adapter) low_gate = sum_of(wi_0.adapter->a_in(context, rows.dtype()));
      if (wi_1.adapter && !one_a) low_up = sum_of(wi_1.adapter->a_in(context, rows.dtype()));
    }
    const auto add_chunk = [&](Sum& sum, const Array& sizes, bool last) {
      if (sum.weights.empty()) return;
      sum.value = add_grouped_product(context, rows, never_save(sum.weights[static_cast<std::size_t>(i)]),
                                      sizes, sum.value, last);
    };
    const bool last = i + 1 == chunks;
    add_chunk(gate, plan.sizes, last && !wi_0.adapter);
    add_chunk(up, plan.sizes, last && !wi_1.adapter);
    for (Sum* low : {&low_gate, &low_up}) add_chunk(*low, of_adapters, last);
  }
  const auto with_adapter = [&](const Linear& layer, const Array& low, const Array& sum) {
    if (!layer.adapter) return sum;
    return add_grouped_product(context, low, layer.adapter->b_in(context, low.dtype()), of_adapters, sum,
                               true);
  };
  return {with_adapter(wi_0, low_gate.value, gate.value),
          with_adapter(wi_1, one_a ? low_gate.value : low_up.value, up.value),
          {}};
}

// How many numbers the rows' adapters have: 1 without several adapters.
std::int64_t adapter_numbers(const MoeWeights& weights) {
  std::int64_t count = 0;
  for (const Linear* const of : {&weights.wi_0, &weights.wi_1, &weights.wo}) {
    if (of->adapter) count = std::max(count, of->adapter->count);
  }
  return count + 1;
}

}  // namespace

Array expert_mlp(Context& context, const MoeConfig& config, const ChunkOf& x, std::int64_t chunks,
                 const RowPlan& dispatched, const Array& row_weights, const MoeWeights& local) {
  // With several adapters the experts were dispatched in parts (block.cc).
  const Array of_adapters = dispatched.sizes;
  RowPlan plan = dispatched;
  const std::int64_t numbers = adapter_numbers(local);
  if (numbers > 1) plan.sizes = join_experts(context, of_adapters, numbers);
  const bool plain = config.plain_experts();
  const bool gates_with_products = plain && chunks == 1 && row_weights.defined();
  auto [gate, up, hidden] =
      chunks == 1 ? whole_up_projections(context, x(0), plan, of_adapters,
                                         gates_with_products ? row_weights : Array(), local.wi_0, local.wi_1)
                  : chunked_up_projections(context, x, chunks, plan, of_adapters, local.wi_0, local.wi_1);
  if (!gate.defined()) return local.wo.grouped_apply(context, hidden, plan.sizes, of_adapters);
  gate = checkpoint_name(gate, "moe_mlpwi_0");
  up = checkpoint_name(up, "moe_mlpwi_1");
  if (gates_with_products) {
    std::vector<Array> down{gate, up, row_weights, local.wo.weight, plan.sizes, hidden};
    if (const auto& adapter = local.wo.adapter) {
      down.insert(down.end(), {of_adapters, adapter->a_in(context, hidden.dtype()),
                               adapter->b_in(context, hidden.dtype())});
    }
    return checkpoint_name(apply(context, std::make_shared<GatedDownOp>(), down).front(), "moe_mlpwo");
  }
  const GroupedRows rows{plan.sizes, row_weights};
  if (!plain)
    hidden = expert_gate(context, config.gate_form(), gate, up, local.wi_0.bias, local.wi_1.bias, rows);
  else
    hidden =
        row_weights.defined() ? weighted_swiglu(context, gate, up, row_weights) : swiglu(context, gate, up);
  Array y = local.wo.grouped_apply(context, hidden, plan.sizes, of_adapters);
  if (config.expert_bias)
    y = add_expert_bias(context, y, local.wo.bias, rows, local.wo.weight.sharding().dims[1]);
  return checkpoint_name(y, "moe_mlpwo");
}

}  // namespace switchyard

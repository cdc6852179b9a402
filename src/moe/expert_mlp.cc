#include "moe/expert_mlp.h"

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/pointwise/elementwise.h"
#include "kernels/product/grouped_matmul.h"
#include "moe/expert_biases.h"
#include "ops/basic.h"

namespace switchyard {
namespace {

// The outputs of experts' weights [G,K,N], which may be packed.
std::int64_t outputs_of(const Tensor& weights) {
  return weights.dim(2) * (is_packed(weights.dtype()) ? kBlockOutputs : 1);
}

// dlhs and drhs of a grouped product of `rows` and `weights` with the groups of input `sizes`.
std::vector<Tensor> gmm_gradients(Context& c, const BackwardCall& call, const Tensor& dy, std::size_t rows,
                                  std::size_t weights, std::size_t sizes) {
  const Tensor group_sizes = call.input(sizes);
  const ArrayInfo& info = call.input_info(weights);
  std::vector<Tensor> grads(call.inputs());
  if (call.wanted(rows)) {
    grads[rows] = c.empty(dy.dtype(), {dy.dim(0), info.local[1]});
    gmm_dlhs(*c.pool, {dy.view(), call.input(weights).view(), group_sizes.view(), grads[rows].view()});
  }
  if (call.wanted(weights)) {
    grads[weights] = c.empty(info.dtype, info.local);
    gmm_drhs(*c.pool, {call.input(rows).view(), dy.view(), group_sizes.view(), grads[weights].view()});
  }
  return grads;
}

class GmmOp : public Op {  // inputs: rows [R,K], weights [G,K,N], sizes [G]
 public:
  std::string_view name() const override { return "gmm"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    return {ragged_info(in[0].dtype, 2)};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    const Tensor out = c.empty(in[0].dtype(), {in[0].dim(0), outputs_of(in[1])});
    gmm(*c.pool, {.lhs = in[0].view(),
                  .rhs = in[1].view(),
                  .bias = {},
                  .group_sizes = in[2].view(),
                  .out = out.view()});
    return {out};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    return gmm_gradients(c, call, call.grad(0), 0, 1, 2);
  }
};

// The sum of grouped products so far and one more: a grouped product whose K is cut into chunks. The sum is
// float32 until the last chunk, which gives the rows' dtype.
class AddGmmOp
    : public Op {  // inputs: rows [R,K], weights [G,K,N], sizes [G], sum [R,N] f32 but for the first chunk
 public:
  explicit AddGmmOp(bool last) : last_(last) {}
  std::string_view name() const override { return "add_gmm"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    return {ragged_info(last_ ? in[0].dtype : DType::f32, 2)};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    const bool first = in.size() < 4;
    const Tensor sum = first ? c.empty(DType::f32, {in[0].dim(0), outputs_of(in[1])}) : in[3].clone();
    gmm(*c.pool, {.lhs = in[0].view(),
                  .rhs = in[1].view(),
                  .bias = {},
                  .group_sizes = in[2].view(),
                  .out = sum.view(),
                  .accumulate = !first});
    return {last_ ? converted(*c.pool, sum, in[0].dtype()) : sum};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    const Tensor& dy = call.grad(0);
    const DType dtype = call.input_info(0).dtype;
    std::vector<Tensor> grads = gmm_gradients(c, call, converted(*c.pool, dy, dtype), 0, 1, 2);
    if (call.inputs() == 4) grads[3] = converted(*c.pool, dy, DType::f32);
    return grads;
  }
  std::uint32_t needs_inputs() const override { return 7; }

 private:
  bool last_;
};

// Gate, up and, with row weights, the weighted activation, of the inputs of GateUpOp.
std::vector<Tensor> gate_and_up(Context& c, std::span<const Tensor> in, const Tensor& row_weights) {
  const Tensor& x = in[3];
  const std::int64_t rows = in.size() > 4 ? in[4].size() : x.dim(0), width = outputs_of(in[0]);
  std::vector<Tensor> out;
  for (int i = 0; i < (row_weights.defined() ? 3 : 2); ++i) out.push_back(c.empty(x.dtype(), {rows, width}));
  gmm_pair(*c.pool, {.x = matrix_of(x),
                     .index = in.size() > 4 ? in[4].view() : TensorView(),
                     .rhs_0 = in[0].view(),
                     .rhs_1 = in[1].view(),
                     .group_sizes = in[2].view(),
                     .out_0 = out[0].view(),
                     .out_1 = out[1].view(),
                     .row_weights = row_weights.view(),
                     .hidden = row_weights.defined() ? out[2].view() : TensorView()});
  return out;
}

// Gate and up of the rows: x[tokens] · wi_0 and · wi_1, the rows never copied where the kernel looks them up.
// Inputs: wi_0, wi_1 [G,M,H], sizes [G], x; with a plan x is in token order and tokens [R], position [T·K]
// follow, else x holds the rows [R,M].
class GateUpOp : public Op {
 public:
  std::string_view name() const override { return "gate_up"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    return {ragged_info(in[3].dtype, 2), ragged_info(in[3].dtype, 2)};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    return gate_and_up(c, in, {});
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    const ArrayInfo& weights = call.input_info(0);
    const bool planned = call.inputs() > 4;
    const Tensor dgate = whole(c, call, 0, weights.local[2]), dup = whole(c, call, 1, weights.local[2]);
    const Tensor group_sizes = call.input(2);
    std::vector<Tensor> grads(call.inputs());
    if (call.wanted(0) || call.wanted(1)) {
      const Tensor x = call.input(3), tokens = planned ? call.input(4) : Tensor();
      for (std::size_t i = 0; i < 2; ++i) grads[i] = c.empty(weights.dtype, weights.local);
      gmm_drhs_pair(*c.pool, {.x = matrix_of(x),
                              .index = tokens.view(),
                              .dy_0 = dgate.view(),
                              .dy_1 = dup.view(),
                              .group_sizes = group_sizes.view(),
                              .drhs_0 = grads[0].view(),
                              .drhs_1 = grads[1].view()});
    }
    if (call.wanted(3)) {
      const Tensor drows = c.empty(dgate.dtype(), {dgate.dim(0), weights.local[1]});
      const Tensor wi_0 = call.input(0), wi_1 = call.input(1);
      gmm_dlhs_pair(*c.pool, {.dy_0 = dgate.view(),
                              .dy_1 = dup.view(),
                              .rhs_0 = wi_0.view(),
                              .rhs_1 = wi_1.view(),
                              .group_sizes = group_sizes.view(),
                              .dlhs = drows.view()});
      grads[3] = planned ? sum_rows(c, drows, call.input(5), call.input_info(3).local) : drows;
    }
    return grads;
  }

 private:
  // The gradient of an output, zeros where none came.
  static Tensor whole(Context& c, const BackwardCall& call, std::size_t output, std::int64_t width) {
    if (call.grad(output).defined()) return call.grad(output);
    const Tensor& other = call.grad(1 - output);
    return c.zeros(other.dtype(), {other.dim(0), width});
  }
};

class WeightedSwigluOp : public Op {
 public:
  std::string_view name() const override { return "weighted_swiglu"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    return {in[0].ragged ? ragged_info(in[0].dtype, 2) : in[0]};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    const Tensor out = c.empty(in[0].dtype(), in[0].shape());
    switchyard::swiglu(*c.pool, {in[0].view(), in[1].view(), in[2].view(), out.view()});
    return {out};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    const Tensor gate = call.input(0), up = call.input(1), w = call.input(2);
    const Tensor dgate = c.empty(gate.dtype(), gate.shape()), dup = c.empty(gate.dtype(), gate.shape()),
                 dw = c.empty(DType::f32, w.shape());
    swiglu_backward(*c.pool, {gate.view(), up.view(), w.view(), call.grad(0).view(), dgate.view(), dup.view(),
                              dw.view()});
    return {dgate, dup, dw};
  }
};

}  // namespace

Array weighted_swiglu(Context& context, const Array& gate, const Array& up, const Array& weights) {
  return never_save(apply_one(context, std::make_shared<WeightedSwigluOp>(), {gate, up, weights}));
}

namespace {

// The experts' gate and up projections, before the activation, and the activation, if it came with them.
struct UpProjections {
  Array gate, up, hidden;
};

UpProjections whole_up_projections(Context& context, const Array& x, const RowPlan& plan,
                                   const Array& row_weights, const Array& wi_0, const Array& wi_1) {
  std::vector<Array> inputs{wi_0, wi_1, plan.sizes, x};
  if (plan.tokens.defined()) inputs.insert(inputs.end(), {plan.tokens, plan.position});
  const auto op = std::make_shared<GateUpOp>();
  if (!row_weights.defined()) {
    const auto pair = apply(context, op, inputs);
    return {pair[0], pair[1], {}};
  }
  const std::vector<Tensor> made = [&] {
    const InsideOp inside(context, op->name(), "forward");
    std::vector<Tensor> tensors;
    for (const auto& input : inputs) tensors.push_back(input.tensor());
    return gate_and_up(context, tensors, row_weights.tensor());
  }();
  const auto pair = adopt(context, op, inputs, {made[0], made[1]});
  const Array activation[] = {pair[0], pair[1], row_weights};
  const auto hidden = adopt(context, std::make_shared<WeightedSwigluOp>(), activation, {made[2]});
  return {pair[0], pair[1], never_save(hidden.front())};
}

UpProjections up_projections(Context& context, const ChunkOf& x, std::int64_t chunks, const RowPlan& plan,
                             const Array& row_weights, const Array& wi_0, const Array& wi_1) {
  if (chunks == 1) return whole_up_projections(context, x(0), plan, row_weights, wi_0, wi_1);
  const auto pieces_0 = chunk_sequence(context, wi_0, chunks),
             pieces_1 = chunk_sequence(context, wi_1, chunks);
  Array gate, up;
  for (std::int64_t i = 0; i < chunks; ++i) {
    const auto product = std::make_shared<AddGmmOp>(i + 1 == chunks);
    const Array piece = x(i), rows = plan.tokens.defined() ? gather_rows(context, piece, plan) : piece;
    const auto add_to = [&](const Array& sum, const Array& weights) {
      const Array w = never_save(weights);
      return i == 0 ? apply_one(context, product, {rows, w, plan.sizes})
                    : apply_one(context, product, {rows, w, plan.sizes, sum});
    };
    gate = add_to(gate, pieces_0[static_cast<std::size_t>(i)]);
    up = add_to(up, pieces_1[static_cast<std::size_t>(i)]);
  }
  return {gate, up, {}};
}

}  // namespace

Array expert_mlp(Context& context, const MoeConfig& config, const ChunkOf& x, std::int64_t chunks,
                 const RowPlan& plan, const Array& row_weights, const MoeWeights& local) {
  const bool plain = config.plain_experts();
  // Only the plain activation comes with the products.
  auto [gate, up, hidden] =
      up_projections(context, x, chunks, plan, plain ? row_weights : Array(), local.wi_0, local.wi_1);
  gate = checkpoint_name(gate, "moe_mlpwi_0");
  up = checkpoint_name(up, "moe_mlpwi_1");
  const GroupedRows rows{plan.sizes, row_weights};
  if (!plain)
    hidden = expert_gate(context, config, gate, up, local.wi_0_bias, local.wi_1_bias, rows);
  else if (!hidden.defined())
    hidden =
        row_weights.defined() ? weighted_swiglu(context, gate, up, row_weights) : swiglu(context, gate, up);
  Array y = apply_one(context, std::make_shared<GmmOp>(), {hidden, local.wo, plan.sizes});
  if (config.expert_bias) y = add_expert_bias(context, y, local.wo_bias, rows, local.wo.sharding().dims[1]);
  return checkpoint_name(y, "moe_mlpwo");
}

}  // namespace switchyard

#include "moe/expert_biases.h"

#include "kernels/moe/expert_gate.h"
#include "kernels/pointwise/elementwise.h"
#include "ops/basic.h"

namespace switchyard {
namespace {

// Inputs that follow those of the op: group sizes and row weights, as far as defined.
struct RowInputs {
  bool ragged, weighted;

  explicit RowInputs(const GroupedRows& rows)
      : ragged(rows.sizes.defined()), weighted(rows.weights.defined()) {}
  void add(const GroupedRows& rows, std::vector<Array>& inputs) const {
    if (ragged) inputs.push_back(rows.sizes);
    if (weighted) inputs.push_back(rows.weights);
  }
  std::size_t weights_at(std::size_t first) const { return first + (ragged ? 1 : 0); }
};

class ExpertGateOp : public Op {  // inputs: gate, up, biases (two or none), sizes, weights
 public:
  ExpertGateOp(GateForm form, bool biased, RowInputs rows) : form_(form), biased_(biased), rows_(rows) {}
  std::string_view name() const override { return "expert_gate"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    return {in[0].ragged ? ragged_info(in[0].dtype, 2) : in[0]};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    const Tensor hidden = c.empty(in[0].dtype(), in[0].shape());
    ExpertGateArgs args = args_of([&](std::size_t i) { return in[i]; });
    args.hidden = hidden.view();
    switchyard::expert_gate(*c.pool, args);
    return {hidden};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    std::vector<Tensor> inputs, grads(call.inputs());
    for (std::size_t i = 0; i < call.inputs(); ++i) inputs.push_back(call.input(i));
    for (std::size_t i = 0; i < 2; ++i) grads[i] = c.empty(inputs[i].dtype(), inputs[i].shape());
    const std::size_t weights = rows_.weights_at(first_row_input());
    if (rows_.weighted) grads[weights] = c.empty(DType::f32, inputs[weights].shape());
    const ExpertGateArgs forward = args_of([&](std::size_t i) { return inputs[i]; });
    expert_gate_backward(*c.pool, {.forward = forward,
                                   .dhidden = call.grad(0).view(),
                                   .dgate = grads[0].view(),
                                   .dup = grads[1].view(),
                                   .drow_weights = rows_.weighted ? grads[weights].view() : TensorView()});
    for (std::size_t i = 0; biased_ && i < 2; ++i) {
      if (!call.wanted(2 + i)) continue;
      const Tensor sum = c.empty(DType::f32, inputs[2 + i].shape());
      sum_groups(
          *c.pool,
          {.x = grads[i].view(), .group_sizes = forward.group_sizes, .row_weights = {}, .out = sum.view()});
      grads[2 + i] = converted(*c.pool, sum, inputs[2 + i].dtype());
    }
    return grads;
  }

 private:
  std::size_t first_row_input() const { return biased_ ? 4 : 2; }
  template <typename TensorAt>
  ExpertGateArgs args_of(const TensorAt& at) const {
    ExpertGateArgs args{.gate = at(0).view(),
                        .up = at(1).view(),
                        .gate_bias = {},
                        .up_bias = {},
                        .group_sizes = {},
                        .row_weights = {},
                        .form = form_,
                        .hidden = {}};
    if (biased_) {
      args.gate_bias = at(2).view();
      args.up_bias = at(3).view();
      if (rows_.ragged) args.group_sizes = at(first_row_input()).view();
    }
    if (rows_.weighted) args.row_weights = at(rows_.weights_at(first_row_input())).view();
    return args;
  }

  GateForm form_;
  bool biased_;
  RowInputs rows_;
};

class AddExpertBiasOp : public Op {  // inputs: y, bias, sizes, weights
 public:
  AddExpertBiasOp(RowInputs rows, bool here) : rows_(rows), here_(here) {}
  std::string_view name() const override { return "add_expert_bias"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    return {in[0].ragged ? ragged_info(in[0].dtype, 2) : in[0]};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    if (!here_) return {in[0]};
    const Tensor out = c.empty(in[0].dtype(), in[0].shape());
    add_group_rows(*c.pool, {.x = in[0].view(),
                             .bias = in[1].view(),
                             .group_sizes = rows_.ragged ? in[2].view() : TensorView(),
                             .row_weights = rows_.weighted ? in[rows_.weights_at(2)].view() : TensorView(),
                             .out = out.view()});
    return {out};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    const Tensor dy = call.grad(0), bias = call.input(1);
    const std::size_t weights_at = rows_.weights_at(2);
    const Tensor sizes = rows_.ragged ? call.input(2) : Tensor(),
                 weights = rows_.weighted ? call.input(weights_at) : Tensor();
    std::vector<Tensor> grads(call.inputs());
    grads[0] = dy;
    if (!here_) {
      if (call.wanted(1)) grads[1] = c.zeros(bias.dtype(), bias.shape());
      if (rows_.weighted) grads[weights_at] = c.zeros(DType::f32, weights.shape());
      return grads;
    }
    if (call.wanted(1)) {
      const Tensor sum = c.empty(DType::f32, bias.shape());
      sum_groups(
          *c.pool,
          {.x = dy.view(), .group_sizes = sizes.view(), .row_weights = weights.view(), .out = sum.view()});
      grads[1] = converted(*c.pool, sum, bias.dtype());
    }
    if (rows_.weighted) {
      grads[weights_at] = c.empty(DType::f32, weights.shape());
      group_row_products(*c.pool, {.dy = dy.view(),
                                   .bias = bias.view(),
                                   .group_sizes = sizes.view(),
                                   .out = grads[weights_at].view()});
    }
    return grads;
  }
  std::uint32_t needs_inputs(std::uint32_t) const override { return ~1u; }

 private:
  RowInputs rows_;
  bool here_;
};

}  // namespace

Array expert_gate(Context& context, const GateForm& form, const Array& gate, const Array& up,
                  const Array& gate_bias, const Array& up_bias, const GroupedRows& rows) {
  const RowInputs row_inputs(rows);
  std::vector<Array> inputs{gate, up};
  const bool biased = gate_bias.defined();
  if (biased) {
    inputs.push_back(cast(context, gate_bias, gate.dtype()));
    inputs.push_back(cast(context, up_bias, up.dtype()));
  }
  row_inputs.add(rows, inputs);
  return never_save(apply(context, std::make_shared<ExpertGateOp>(form, biased, row_inputs), inputs).front());
}

Array add_expert_bias(Context& context, const Array& y, const Array& bias, const GroupedRows& rows,
                      const Axes& partial) {
  bool here = true;
  for (const auto& axis : partial) here = here && context.mesh->coordinate(context.rank, axis) == 0;
  const RowInputs row_inputs(rows);
  std::vector<Array> inputs{y, cast(context, bias, y.dtype())};
  row_inputs.add(rows, inputs);
  return apply(context, std::make_shared<AddExpertBiasOp>(row_inputs, here), inputs).front();
}

}  // namespace switchyard

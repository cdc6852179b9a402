#include "moe/expert_mlp.h"

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/elementwise.h"
#include "kernels/gemm.h"
#include "kernels/grouped_matmul.h"
#include "moe/assumed_load.h"
#include "ops/basic.h"
#include "ops/rank_partners.h"
#include "ops/shared_result.h"

namespace switchyard {
namespace {

std::vector<std::int64_t> sizes_of(const Tensor& t, std::int64_t rows) {
  if (t.abstract()) return even_groups(rows, t.size());
  const auto s = t.span<std::int32_t>();
  return std::vector<std::int64_t>(s.begin(), s.end());
}

// Those who multiply with the same weights, or the same tokens, where the kernels let them do it together;
// else null. Of all ranks that hold them, either each has partners or none.
std::unique_ptr<RankPartners> partners_of(Context& c, DType rows, const ArrayInfo& weights,
                                          const Axes& same_tokens = {}) {
  Axes axes = rows == weights.dtype ? weights.shared : Axes{};
  add_axes(axes, same_tokens);
  return partners_over(c, axes, rows);
}

// The axes over which ranks have the same tokens x, which `weights` take, where that saves them something.
Axes same_tokens(const Context& c, const ArrayInfo& x, const ArrayInfo& weights) {
  return num_elements(x.local) * weights.local[2] < kWorthMeeting ? Axes{} : whole_axes(c, x.sharding);
}

// The gradients of weights (inputs of a grouped product, shaped alike), which partners sum as they make them
// where they would be summed next.
class WeightGradients {
 public:
  // `same_tokens`: over which the rows are of the same tokens.
  WeightGradients(Context& c, const BackwardCall& call, std::initializer_list<std::size_t> weights,
                  DType rows, const Axes& same_tokens = {})
      : call_(call), weights_(weights) {
    const ArrayInfo& info = call.input_info(weights_.front());
    sums_ = !info.gathered &&
            std::all_of(weights_.begin(), weights_.end(),
                        [&](std::size_t i) { return call.wanted(i) && call.may_sum(i); });
    if (info.gathered || sums_) partners_ = partners_of(c, rows, info);
    sums_ = sums_ && partners_ != nullptr;
    if (partners_ == nullptr) together_ = partners_over(c, same_tokens, rows);
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      tensors_.push_back(sums_ ? sum_of_ranks(c, info.shared, info.dtype, info.local)
                         : partners_ == nullptr || partners_->is_first()
                             ? Tensor(info.dtype, info.local)
                             : Tensor::without_memory(info.dtype, info.local));
    }
  }
  Partners* summing() const { return partners_.get(); }
  Partners* together() const { return together_.get(); }
  DType dtype() const { return tensors_.front().dtype(); }
  void* to(std::size_t i) { return tensors_[i].raw(); }
  // Once they are made.
  void give(std::vector<Tensor>& grads) {
    for (std::size_t i = 0; i < weights_.size(); ++i) {
      if (sums_)
        call_.give_sum(weights_[i], std::move(tensors_[i]));
      else
        grads[weights_[i]] = std::move(tensors_[i]);
    }
  }

 private:
  const BackwardCall& call_;
  const std::vector<std::size_t> weights_;
  bool sums_ = false;
  std::unique_ptr<RankPartners> partners_, together_;  // who sum gradients; who do not, and share rows
  std::vector<Tensor> tensors_;
};

// dlhs and drhs of a grouped product of `rows` and `weights` with the groups of input `sizes`.
std::vector<Tensor> gmm_gradients(Context& c, const BackwardCall& call, const Tensor& dy, std::size_t rows,
                                  std::size_t weights, std::size_t sizes) {
  const auto groups = sizes_of(call.input(sizes), dy.dim(0));
  const ArrayInfo& info = call.input_info(weights);
  const std::int64_t k = info.local[1], n = info.local[2];
  std::vector<Tensor> grads(call.inputs());
  if (call.wanted(rows)) {
    grads[rows] = Tensor(dy.dtype(), {dy.dim(0), k});
    gmm_dlhs(*c.pool, dy.dtype(), dy.raw(), call.input(weights).raw(), groups, k, n, grads[rows].raw(),
             partners_of(c, dy.dtype(), info).get());
  }
  if (call.wanted(weights)) {
    WeightGradients made(c, call, {weights}, dy.dtype());
    gmm_drhs(*c.pool, dy.dtype(), call.input(rows).raw(), dy.raw(), groups, k, n, made.to(0), made.dtype(),
             made.summing());
    made.give(grads);
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
                              std::span<const ArrayInfo> infos) const override {
    Tensor out(in[0].dtype(), {in[0].dim(0), in[1].dim(2)});
    gmm(*c.pool, in[0].dtype(), in[0].raw(), in[1].raw(), nullptr, sizes_of(in[2], in[0].dim(0)),
        in[1].dim(1), in[1].dim(2), out.raw(), partners_of(c, in[0].dtype(), infos[1]).get());
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
    const std::int64_t k = in[1].dim(1), n = in[1].dim(2);
    Tensor sum = in.size() == 4 ? in[3].clone() : Tensor::zeros(DType::f32, {in[0].dim(0), n});
    std::int64_t row = 0, group = 0;
    for (const std::int64_t rows : sizes_of(in[2], in[0].dim(0))) {
      GemmArgs args;
      args.m = rows, args.n = n, args.k = k;
      args.dtype = in[0].dtype();
      args.a = in[0].raw() + static_cast<std::size_t>(row * k) * size_of(in[0].dtype());
      args.b = in[1].raw() + static_cast<std::size_t>(group * k * n) * size_of(in[1].dtype());
      args.c = sum.raw() + static_cast<std::size_t>(row * n) * sizeof(float);
      args.lda = k, args.ldb = args.ldc = n;
      args.accumulate = true;
      if (rows > 0) gemm(*c.pool, args);
      row += rows;
      ++group;
    }
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

using Index = std::span<const std::int32_t>;
Index index_of(const Tensor& tokens) {
  return tokens.span<std::int32_t>();
}

// Gate, up and, with row weights, the weighted activation, of the inputs of GateUpOp.
std::vector<Tensor> gate_and_up(Context& c, std::span<const Tensor> in, const ArrayInfo& weights,
                                const ArrayInfo& x_info, const Tensor& row_weights) {
  const Tensor& x = in[3];
  const std::int64_t rows = in.size() > 4 ? in[4].size() : x.dim(0), width = in[0].dim(2);
  const Axes tokens = in.size() > 4 ? same_tokens(c, x_info, weights) : Axes{};
  std::vector<Tensor> out;
  for (int i = 0; i < (row_weights.defined() ? 3 : 2); ++i) out.emplace_back(x.dtype(), Shape{rows, width});
  gmm_pair(*c.pool, x.dtype(), x.raw(), in.size() > 4 ? index_of(in[4]) : Index{}, in[0].raw(), in[1].raw(),
           sizes_of(in[2], rows), in[0].dim(1), width, out[0].raw(), out[1].raw(),
           row_weights.defined() ? row_weights.data<float>() : nullptr,
           row_weights.defined() ? out[2].raw() : nullptr, partners_of(c, x.dtype(), weights, tokens).get());
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
                              std::span<const ArrayInfo> infos) const override {
    return gate_and_up(c, in, infos[0], infos[3], {});
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    const ArrayInfo& weights = call.input_info(0);
    const std::int64_t k = weights.local[1], n = weights.local[2];
    const bool planned = call.inputs() > 4;
    const Tensor dgate = whole(call, 0, n), dup = whole(call, 1, n);
    const std::int64_t rows = dgate.dim(0);
    const auto group_sizes = sizes_of(call.input(2), rows);
    const DType dtype = dgate.dtype();
    std::vector<Tensor> grads(call.inputs());
    if (call.wanted(0) || call.wanted(1)) {
      const Tensor x = call.input(3);
      WeightGradients made(c, call, {0, 1}, dtype,
                           planned ? same_tokens(c, call.input_info(3), weights) : Axes{});
      gmm_drhs_pair(*c.pool, dtype, x.raw(), planned ? index_of(call.input(4)) : Index{}, dgate.raw(),
                    dup.raw(), group_sizes, k, n, made.to(0), made.to(1), made.dtype(), made.summing(),
                    made.together());
      made.give(grads);
    }
    if (call.wanted(3)) {
      Tensor drows(dtype, {rows, k});
      gmm_dlhs_pair(*c.pool, dtype, dgate.raw(), dup.raw(), call.input(0).raw(), call.input(1).raw(),
                    group_sizes, k, n, drows.raw(), partners_of(c, dtype, weights).get());
      grads[3] = planned ? sum_rows(c, drows, call.input(5), call.input_info(3).local) : drows;
    }
    return grads;
  }

 private:
  // The gradient of an output, zeros where none came.
  static Tensor whole(const BackwardCall& call, std::size_t output, std::int64_t width) {
    if (call.grad(output).defined()) return call.grad(output);
    const Tensor& other = call.grad(1 - output);
    return Tensor::zeros(other.dtype(), {other.dim(0), width});
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
    Tensor out(in[0].dtype(), in[0].shape());
    switchyard::swiglu(*c.pool, out.dtype(), in[0].raw(), in[1].raw(), in[2].data<float>(), in[2].size(),
                       out.shape().back(), out.raw());
    return {out};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    const Tensor gate = call.input(0), up = call.input(1), w = call.input(2);
    Tensor dgate(gate.dtype(), gate.shape()), dup(gate.dtype(), gate.shape()), dw(DType::f32, w.shape());
    swiglu_backward(*c.pool, gate.dtype(), gate.raw(), up.raw(), w.data<float>(), call.grad(0).raw(),
                    w.size(), gate.shape().back(), dgate.raw(), dup.raw(), dw.data<float>());
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
    return gate_and_up(context, tensors, wi_0.info(), x.info(), row_weights.tensor());
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

Array expert_mlp(Context& context, const ChunkOf& x, std::int64_t chunks, const RowPlan& plan,
                 const Array& row_weights, const Array& wi_0, const Array& wi_1, const Array& wo) {
  auto [gate, up, hidden] = up_projections(context, x, chunks, plan, row_weights, wi_0, wi_1);
  gate = checkpoint_name(gate, "moe_mlpwi_0");
  up = checkpoint_name(up, "moe_mlpwi_1");
  if (!hidden.defined()) {
    hidden =
        row_weights.defined() ? weighted_swiglu(context, gate, up, row_weights) : swiglu(context, gate, up);
  }
  return checkpoint_name(apply_one(context, std::make_shared<GmmOp>(), {hidden, wo, plan.sizes}),
                         "moe_mlpwo");
}

}  // namespace switchyard

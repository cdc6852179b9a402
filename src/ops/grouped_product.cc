#include "ops/grouped_product.h"

#include <algorithm>

#include "kernels/pointwise/elementwise.h"
#include "kernels/product/grouped_matmul.h"

namespace switchyard {
namespace {

// Inputs: rows, weights, sizes, and for all products but the first the sum.
std::vector<Tensor> gradients_of_product(Context& c, const BackwardCall& call, const Tensor& dy,
                                         const GmmLow& low) {
  const Tensor sizes = call.input(2);
  std::vector<Tensor> grads(call.inputs());
  if (call.wanted(0)) grads[0] = gradient_of_rows(c, dy, call.input(1), sizes, low);
  if (call.wanted(1)) grads[1] = gradient_of_weights(c, call.input(0), dy, sizes, call.input_info(1));
  return grads;
}

// Rows for the gradients of all that is multiplied with them, weights for the rows'.
std::uint32_t read_by_product(std::uint32_t wanted) {
  return 4u | ((wanted & ~1u) != 0 ? 1u : 0u) | ((wanted & 1u) != 0 ? 2u : 0u);
}

// Inputs: rows, weights, sizes; where there is a low-rank part its sizes, a and b.
class GroupedProductOp : public Op {
 public:
  std::string_view name() const override { return "gmm"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    return {ragged_info(in[0].dtype, 2)};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    if (in.size() == 3) return {grouped_product(c, in[0], in[1], in[2])};
    return {grouped_product(c, in[0], in[1], GroupedLowRank{in[3], in[4], {in[5]}})};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    const Tensor dy = call.grad(0);
    if (call.inputs() == 3) return gradients_of_product(c, call, dy, {});
    const GroupedLowRank low_rank{call.input(3), call.input(4), {call.input(5)}};
    const Tensor dlow = low_rank.gradient_of_low(c, {&dy, 1});
    std::vector<Tensor> grads = gradients_of_product(c, call, dy, {dlow.view(), low_rank.a.view()});
    if (call.wanted(4) || call.wanted(5))
      std::ranges::move(low_rank.gradients(c, call.input(0), {}, {&dy, 1}, dlow), grads.begin() + 4);
    return grads;
  }
  std::uint32_t needs_inputs(std::uint32_t wanted) const override { return read_by_product(wanted) | 0x38; }
};

class AddGroupedProductOp : public Op {
 public:
  explicit AddGroupedProductOp(bool last) : last_(last) {}
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
    std::vector<Tensor> grads =
        gradients_of_product(c, call, converted(*c.pool, dy, call.input_info(0).dtype), {});
    if (call.inputs() == 4) grads[3] = converted(*c.pool, dy, DType::f32);
    return grads;
  }
  std::uint32_t needs_inputs(std::uint32_t wanted) const override { return read_by_product(wanted & 3); }

 private:
  bool last_;
};

}  // namespace

std::int64_t inputs_of(const Tensor& weights) {
  return weights.dim(1) * (is_packed(weights.dtype()) ? block_inputs(weights.dtype()) : 1);
}

std::int64_t outputs_of(const Tensor& weights) {
  return weights.dim(2) * (is_packed(weights.dtype()) ? kBlockOutputs : 1);
}

Tensor grouped_product(Context& c, const Tensor& rows, const Tensor& weights, const Tensor& sizes) {
  const Tensor out = c.empty(rows.dtype(), {rows.dim(0), outputs_of(weights)});
  gmm(*c.pool, {.lhs = rows.view(),
                .rhs = weights.view(),
                .bias = {},
                .group_sizes = sizes.view(),
                .out = out.view()});
  return out;
}

Tensor grouped_product(Context& c, const Tensor& rows, const Tensor& weights, const GroupedLowRank& low_rank,
                       const Tensor& index) {
  const Tensor low = low_rank.low_of(c, rows, index),
               out = c.empty(rows.dtype(), {low.dim(0), outputs_of(weights)});
  gmm(*c.pool, {.lhs = rows.view(),
                .rhs = weights.view(),
                .bias = {},
                .group_sizes = low_rank.sizes.view(),
                .out = out.view(),
                .index = index.view(),
                .low = {low.view(), low_rank.b[0].view()}});
  return out;
}

Tensor gradient_of_rows(Context& c, const Tensor& dy, const Tensor& weights, const Tensor& sizes,
                        const GmmLow& low) {
  const Tensor drows = c.empty(dy.dtype(), {dy.dim(0), inputs_of(weights)});
  gmm_dlhs(*c.pool, {dy.view(), weights.view(), sizes.view(), drows.view(), low});
  return drows;
}

Tensor gradient_of_weights(Context& c, const Tensor& rows, const Tensor& dy, const Tensor& sizes,
                           const ArrayInfo& weights) {
  const Tensor dweights = c.empty(weights.dtype, weights.local);
  gmm_drhs(*c.pool, {rows.view(), dy.view(), sizes.view(), dweights.view()});
  return dweights;
}

Tensor GroupedLowRank::low_of(Context& c, const Tensor& rows, const Tensor& index) const {
  const Tensor low = c.empty(rows.dtype(), {index.defined() ? index.size() : rows.dim(0), a.dim(2)});
  gmm(*c.pool, {.lhs = rows.view(),
                .rhs = a.view(),
                .bias = {},
                .group_sizes = sizes.view(),
                .out = low.view(),
                .index = index.view()});
  return low;
}

Tensor GroupedLowRank::gradient_of_low(Context& c, std::span<const Tensor> dy) const {
  const Tensor dlow = c.empty(dy[0].dtype(), {dy[0].dim(0), a.dim(2)});
  if (b.size() == 1)
    gmm_dlhs(*c.pool, {dy[0].view(), b[0].view(), sizes.view(), dlow.view()});
  else
    gmm_dlhs_pair(*c.pool, {dy[0].view(), dy[1].view(), b[0].view(), b[1].view(), sizes.view(), dlow.view()});
  return dlow;
}

std::vector<Tensor> GroupedLowRank::gradients(Context& c, const Tensor& rows, const Tensor& index,
                                              std::span<const Tensor> dy, const Tensor& dlow) const {
  std::vector<Tensor> grads{c.empty(a.dtype(), a.shape())};
  for (const Tensor& one : b) grads.push_back(c.empty(one.dtype(), one.shape()));
  gmm_drhs(*c.pool, {rows.view(), dlow.view(), sizes.view(), grads[0].view(), index.view()});
  const Tensor low = low_of(c, rows, index);
  for (std::size_t i = 0; i < b.size(); ++i)
    gmm_drhs(*c.pool, {low.view(), dy[i].view(), sizes.view(), grads[1 + i].view()});
  return grads;
}

Array grouped_product(Context& context, const Array& rows, const Array& weights, const Array& sizes) {
  return apply_one(context, std::make_shared<GroupedProductOp>(), {rows, weights, sizes});
}

Array grouped_product(Context& context, const Array& rows, const Array& weights, const Array& sizes,
                      const Array& sizes_of_adapters, const Array& a, const Array& b) {
  return apply_one(context, std::make_shared<GroupedProductOp>(),
                   {rows, weights, sizes, sizes_of_adapters, a, b});
}

Array add_grouped_product(Context& context, const Array& rows, const Array& weights, const Array& sizes,
                          const Array& sum, bool last) {
  std::vector<Array> inputs{rows, weights, sizes};
  if (sum.defined()) inputs.push_back(sum);
  return apply(context, std::make_shared<AddGroupedProductOp>(last), inputs).front();
}

}  // namespace switchyard

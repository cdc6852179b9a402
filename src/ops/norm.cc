#include "ops/norm.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "core/error.h"
#include "kernels/pointwise/random_values.h"
#include "kernels/pointwise/rms_norm.h"
#include "ops/reshard.h"

namespace switchyard {
namespace {

class RmsNormOp : public Op {  // inputs: x, maybe its scale
 public:
  // dims: the number of last dims that are normed together.
  RmsNormOp(float epsilon, std::size_t dims, float scale_offset)
      : epsilon_(epsilon), dims_(dims), scale_offset_(scale_offset) {}
  std::string_view name() const override { return "rms_norm"; }

  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    ArrayInfo rstd = in[0];
    rstd.dtype = DType::f32;
    rstd.shape = rows_shape(rstd.shape);
    rstd.local = rows_shape(rstd.local);
    rstd.sharding.dims.resize(rstd.shape.size());
    return {in[0], rstd};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo> infos) const override {
    const Tensor& x = in[0];
    const Tensor scale = in.size() > 1 ? in[1] : ones(c, x.shape().back());
    const Tensor y = c.empty(x.dtype(), x.shape()), rstd = c.empty(DType::f32, rows_shape(x.shape()));
    const auto split = split_of(c, infos[0]);
    const Shape rows = as_rows(x, scale);
    rms_norm(*c.pool, {.x = x.view().reshaped(rows),
                       .scale = flat(scale),
                       .eps = epsilon_,
                       .y = y.view().reshaped(rows),
                       .rstd = rstd.view(),
                       .split = split ? &*split : nullptr,
                       .scale_offset = scale_offset_});
    return {y, rstd};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    const Tensor x = call.input(0), rstd = call.output(1);
    const bool scaled = call.inputs() > 1;
    const Tensor scale = scaled ? call.input(1) : ones(c, x.shape().back());
    const Tensor dx = c.empty(x.dtype(), x.shape()), dscale = c.empty(DType::f32, scale.shape());
    const auto split = split_of(c, call.input_info(0));
    const Shape rows = as_rows(x, scale);
    rms_norm_backward(*c.pool, {.x = x.view().reshaped(rows),
                                .scale = flat(scale),
                                .rstd = rstd.view(),
                                .dy = call.grad(0).view().reshaped(rows),
                                .dx = dx.view().reshaped(rows),
                                .dscale = flat(dscale),
                                .split = split ? &*split : nullptr,
                                .scale_offset = scale_offset_});
    if (!scaled) return {dx};
    return {dx, dscale};
  }
  std::uint32_t needs_outputs() const override { return 2; }

 private:
  Shape rows_shape(Shape shape) const {
    shape.resize(shape.size() - dims_);
    return shape;
  }
  static Shape as_rows(const Tensor& x, const Tensor& scale) {
    return {x.size() / std::max<std::int64_t>(1, scale.size()), scale.size()};
  }
  static Tensor ones(Context& c, std::int64_t count) {
    const Tensor there = c.empty(DType::f32, {count});
    random_values(*c.pool, {.to = there.view(), .whole = {count}, .start = {0}, .factor = 1});
    return there;
  }
  static TensorView flat(const Tensor& scale) { return scale.view().reshaped({scale.size()}); }

  // Where a normed dim is split.
  std::optional<SplitRows> split_of(Context& c, const ArrayInfo& x) const {
    Axes axes;
    std::int64_t elements = 1;
    for (std::size_t i = x.shape.size() - dims_; i < x.shape.size(); ++i) {
      for (const auto& axis : x.sharding.dims[i]) axes.push_back(axis);
      elements *= x.shape[i];
    }
    if (axes.empty()) return std::nullopt;
    return SplitRows{elements,
                     [&c, axes](const TensorView& sums) { c.comm->all_reduce(c.group(axes), sums); }};
  }
  float epsilon_;
  std::size_t dims_;
  float scale_offset_;
};

Array norm_of_last(Context& context, const Array& x, const Array& scale, float epsilon,
                   float scale_offset = 0) {
  const std::size_t dims = scale.shape().size();
  Sharding layout;
  for (std::size_t i = x.shape().size() - dims; i < x.shape().size(); ++i)
    layout.dims.push_back(x.sharding().dims[i]);
  const Array inputs[] = {x, reshard(context, scale, layout)};
  return apply(context, std::make_shared<RmsNormOp>(epsilon, dims, scale_offset), inputs).front();
}

}  // namespace

Array rms_norm(Context& context, const Array& x, const Array& scale, float epsilon, float scale_offset) {
  CHECK(scale.shape().size() == 1, "[rms_norm] scale {}", to_string(scale.shape()));
  return norm_of_last(context, x, scale, epsilon, scale_offset);
}

Array rms_norm_without_scale(Context& context, const Array& x, float epsilon) {
  CHECK(x.sharding().dims.back().empty(), "[rms_norm] {}", to_string(x.sharding()));
  return apply(context, std::make_shared<RmsNormOp>(epsilon, 1, 0.0f), std::span(&x, 1)).front();
}

Array rms_norm_of_heads(Context& context, const Array& x, const Array& scale, float epsilon) {
  CHECK(scale.shape().size() == 2 && x.shape().size() == 4, "[rms_norm] {} of scale {}", to_string(x.shape()),
        to_string(scale.shape()));
  return norm_of_last(context, x, scale, epsilon);
}

}  // namespace switchyard

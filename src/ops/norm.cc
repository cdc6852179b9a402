#include "ops/norm.h"

#include <optional>

#include "kernels/rms_norm.h"
#include "ops/reshard.h"

namespace switchyard {
namespace {

class RmsNormOp : public Op {
 public:
  explicit RmsNormOp(float epsilon) : epsilon_(epsilon) {}
  std::string_view name() const override { return "rms_norm"; }

  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    ArrayInfo rstd = in[0];
    rstd.dtype = DType::f32;
    rstd.shape.pop_back();
    rstd.local.pop_back();
    rstd.sharding.dims.pop_back();
    return {in[0], rstd};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo> infos) const override {
    const Tensor& x = in[0];
    Shape row_shape = x.shape();
    row_shape.pop_back();
    const Tensor y = c.empty(x.dtype(), x.shape()), rstd = c.empty(DType::f32, row_shape);
    const auto split = split_of(c, infos[0]);
    rms_norm(*c.pool, {.x = x.view(),
                       .scale = in[1].view(),
                       .eps = epsilon_,
                       .y = y.view(),
                       .rstd = rstd.view(),
                       .split = split ? &*split : nullptr});
    return {y, rstd};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    const Tensor x = call.input(0), scale = call.input(1), rstd = call.output(1);
    const Tensor dx = c.empty(x.dtype(), x.shape()), dscale = c.empty(DType::f32, scale.shape());
    const auto split = split_of(c, call.input_info(0));
    rms_norm_backward(*c.pool, {.x = x.view(),
                                .scale = scale.view(),
                                .rstd = rstd.view(),
                                .dy = call.grad(0).view(),
                                .dx = dx.view(),
                                .dscale = dscale.view(),
                                .split = split ? &*split : nullptr});
    return {dx, dscale};
  }
  std::uint32_t needs_outputs() const override { return 2; }

 private:
  // Where the last dim is split.
  static std::optional<SplitRows> split_of(Context& c, const ArrayInfo& x) {
    const Axes axes = x.sharding.dims.back();
    if (axes.empty()) return std::nullopt;
    return SplitRows{x.shape.back(),
                     [&c, axes](const TensorView& sums) { c.comm->all_reduce(c.group(axes), sums); }};
  }
  float epsilon_;
};

}  // namespace

Array rms_norm(Context& context, const Array& x, const Array& scale, float epsilon) {
  const Array aligned = reshard(context, scale, Sharding{{x.sharding().dims.back()}, {}});
  const Array inputs[] = {x, aligned};
  return apply(context, std::make_shared<RmsNormOp>(epsilon), inputs).front();
}

}  // namespace switchyard

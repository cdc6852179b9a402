#include "ops/norm.h"

#include <fmt/ranges.h>

#include <cmath>

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
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in, std::span<const ArrayInfo> infos) const override {
    const Tensor& x = in[0];
    Shape row_shape = x.shape();
    row_shape.pop_back();
    Tensor y(x.dtype(), x.shape()), rstd(DType::f32, row_shape);
    const Axes& axes = infos[0].sharding.dims.back();
    if (axes.empty()) {
      rms_norm(*c.pool, x.dtype(), x.raw(), in[1].raw(), in[1].dtype(), rstd.size(), x.shape().back(), epsilon_, y.raw(),
               rstd.data<float>());
    } else {
      split_forward(c, x, in[1], infos[0], y, rstd);
    }
    return {y, rstd};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    const Tensor x = call.input(0), scale = call.input(1), rstd = call.output(1);
    Tensor dx(x.dtype(), x.shape()), dscale(DType::f32, scale.shape());
    const Tensor& dy = call.grad(0);
    if (call.input_info(0).sharding.dims.back().empty()) {
      rms_norm_backward(*c.pool, x.dtype(), x.raw(), scale.raw(), scale.dtype(), rstd.data<float>(), dy.raw(), rstd.size(),
                        x.shape().back(), dx.raw(), dscale.data<float>());
    } else {
      dx = split_backward(c, x, scale, rstd, dy, call.input_info(0), dscale);
    }
    return {dx, dscale};
  }
  std::uint32_t needs_outputs() const override { return 2; }

 private:
  // The last dim is split: the same function with the row sums exchanged.
  void split_forward(Context& c, const Tensor& x, const Tensor& scale, const ArrayInfo& info, Tensor& y, Tensor& rstd) const {
    const Tensor wide = x.cast(DType::f32), factor = scale.cast(DType::f32);
    const std::int64_t rows = rstd.size(), dim = x.shape().back();
    float* sum = rstd.data<float>();
    for (std::int64_t r = 0; r < rows; ++r) {
      const float* row = wide.data<float>() + r * dim;
      float total = 0;
      for (std::int64_t i = 0; i < dim; ++i) total += row[i] * row[i];
      sum[r] = total;
    }
    exchange(c, info, sum, rows);
    Tensor result(DType::f32, x.shape());
    for (std::int64_t r = 0; r < rows; ++r) {
      sum[r] = 1.0f / std::sqrt(sum[r] / static_cast<float>(info.shape.back()) + epsilon_);
      for (std::int64_t i = 0; i < dim; ++i) {
        result.data<float>()[r * dim + i] = wide.data<float>()[r * dim + i] * sum[r] * factor.data<float>()[i];
      }
    }
    y = result.cast(x.dtype());
  }
  Tensor split_backward(Context& c, const Tensor& x, const Tensor& scale, const Tensor& rstd, const Tensor& dy,
                        const ArrayInfo& info, Tensor& dscale) const {
    const Tensor wide = x.cast(DType::f32), factor = scale.cast(DType::f32), up = dy.cast(DType::f32);
    const std::int64_t rows = rstd.size(), dim = x.shape().back();
    dscale.fill_zero();
    std::vector<float> dot(static_cast<std::size_t>(rows), 0.0f);
    auto at = [dim](const Tensor& t, std::int64_t r, std::int64_t i) -> float& { return t.data<float>()[r * dim + i]; };
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t i = 0; i < dim; ++i) {
        const float g = at(up, r, i) * at(wide, r, i);
        dot[static_cast<std::size_t>(r)] += g * factor.data<float>()[i];
        dscale.data<float>()[i] += g * rstd.data<float>()[r];
      }
    }
    exchange(c, info, dot.data(), rows);
    Tensor dx(DType::f32, x.shape());
    for (std::int64_t r = 0; r < rows; ++r) {
      const float s = rstd.data<float>()[r];
      const float mean = dot[static_cast<std::size_t>(r)] * s * s / static_cast<float>(info.shape.back());
      for (std::int64_t i = 0; i < dim; ++i) {
        at(dx, r, i) = s * (at(up, r, i) * factor.data<float>()[i] - at(wide, r, i) * mean);
      }
    }
    return dx.cast(x.dtype());
  }
  static void exchange(Context& c, const ArrayInfo& info, float* sums, std::int64_t rows) {
    const Axes& axes = info.sharding.dims.back();
    c.comm->all_reduce(c.group(axes), fmt::format("{}", fmt::join(axes, "+")), DType::f32, sums, rows);
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

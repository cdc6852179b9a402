#include "ops/norm.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/elementwise.h"
#include "kernels/rms_norm.h"
#include "ops/reshard.h"

namespace switchyard {
namespace {

constexpr std::int64_t kNormRowsAtOnce = 32;

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
    Tensor y(x.dtype(), x.shape()), rstd(DType::f32, row_shape);
    const Axes& axes = infos[0].sharding.dims.back();
    if (axes.empty()) {
      rms_norm(*c.pool, x.dtype(), x.raw(), in[1].raw(), in[1].dtype(), rstd.size(), x.shape().back(),
               epsilon_, y.raw(), rstd.data<float>());
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
      rms_norm_backward(*c.pool, x.dtype(), x.raw(), scale.raw(), scale.dtype(), rstd.data<float>(), dy.raw(),
                        rstd.size(), x.shape().back(), dx.raw(), dscale.data<float>());
    } else {
      dx = split_backward(c, x, scale, rstd, dy, call.input_info(0), dscale);
    }
    return {dx, dscale};
  }
  std::uint32_t needs_outputs() const override { return 2; }

 private:
  // The last dim is split: the same function with the row sums exchanged.
  void split_forward(Context& c, const Tensor& x, const Tensor& scale, const ArrayInfo& info, Tensor& y,
                     Tensor& rstd) const {
    const Tensor wide = x.cast(DType::f32), factor = scale.cast(DType::f32);
    const std::int64_t rows = rstd.size(), dim = x.shape().back();
    float* sum = rstd.data<float>();
    c.pool->for_range(rows, kNormRowsAtOnce, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        const float* row = wide.data<float>() + r * dim;
        sum[r] = std::inner_product(row, row + dim, row, 0.0f);
      }
    });
    exchange(c, info, sum, rows);
    Tensor result(DType::f32, x.shape());
    c.pool->for_range(rows, kNormRowsAtOnce, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        sum[r] = 1.0f / std::sqrt(sum[r] / static_cast<float>(info.shape.back()) + epsilon_);
        const float *row = wide.data<float>() + r * dim, *f = factor.data<float>();
        float* to = result.data<float>() + r * dim;
        for (std::int64_t i = 0; i < dim; ++i) to[i] = row[i] * sum[r] * f[i];
      }
    });
    y = result.cast(x.dtype());
  }
  Tensor split_backward(Context& c, const Tensor& x, const Tensor& scale, const Tensor& rstd,
                        const Tensor& dy, const ArrayInfo& info, Tensor& dscale) const {
    const Tensor wide = x.cast(DType::f32), factor = scale.cast(DType::f32), up = dy.cast(DType::f32);
    const std::int64_t rows = rstd.size(), dim = x.shape().back(),
                       blocks = (rows + kNormRowsAtOnce - 1) / kNormRowsAtOnce;
    Tensor parts = Tensor::zeros(DType::f32, {blocks, dim});  // of dscale, summed in order of the blocks
    std::vector<float> dot(static_cast<std::size_t>(rows), 0.0f);
    c.pool->for_range(blocks, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin * kNormRowsAtOnce; r < std::min(rows, end * kNormRowsAtOnce); ++r) {
        const float *g = up.data<float>() + r * dim, *row = wide.data<float>() + r * dim,
                    *f = factor.data<float>();
        float* part = parts.data<float>() + r / kNormRowsAtOnce * dim;
        float total = 0;
        for (std::int64_t i = 0; i < dim; ++i) {
          total += g[i] * row[i] * f[i];
          part[i] += g[i] * row[i] * rstd.data<float>()[r];
        }
        dot[static_cast<std::size_t>(r)] = total;
      }
    });
    dscale.fill_zero();
    for (std::int64_t b = 0; b < blocks; ++b)
      add_into_f32(*c.pool, dscale.data<float>(), DType::f32, parts.data<float>() + b * dim, dim);
    exchange(c, info, dot.data(), rows);
    Tensor dx(DType::f32, x.shape());
    c.pool->for_range(rows, kNormRowsAtOnce, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        const float s = rstd.data<float>()[r];
        const float mean = dot[static_cast<std::size_t>(r)] * s * s / static_cast<float>(info.shape.back());
        const float *g = up.data<float>() + r * dim, *row = wide.data<float>() + r * dim,
                    *f = factor.data<float>();
        float* to = dx.data<float>() + r * dim;
        for (std::int64_t i = 0; i < dim; ++i) to[i] = s * (g[i] * f[i] - row[i] * mean);
      }
    });
    return dx.cast(x.dtype());
  }
  static void exchange(Context& c, const ArrayInfo& info, float* sums, std::int64_t rows) {
    const Axes& axes = info.sharding.dims.back();
    c.comm->all_reduce(c.group(axes), joined(axes), DType::f32, sums, rows);
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

#include "moe/combine_gradient.h"

#include <charconv>

#include "autograd/op.h"
#include "kernels/pointwise/round_to_e5m2.h"
#include "moe/rows.h"

namespace switchyard {
namespace {

class RoundGradientOp : public Op {
 public:
  explicit RoundGradientOp(float bound) : bound_(bound) {}
  std::string_view name() const override { return "round_gradient"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    CHECK(in[0].sharding.dims.back().empty(), "[round_gradient] a token's width is split: {}",
          to_string(in[0].sharding));
    return {in[0]};
  }
  std::vector<Tensor> forward(Context&, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    return {in[0]};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    const Tensor g = call.grad(0), rounded = c.empty(g.dtype(), g.shape());
    round_to_e5m2(*c.pool, {matrix_of(g), matrix_of(rounded), bound_});
    return {rounded};
  }
  std::uint32_t needs_inputs(std::uint32_t) const override { return 0; }

 private:
  float bound_;
};

}  // namespace

Array round_gradient(Context& context, const Array& y, float bound) {
  return apply(context, std::make_shared<RoundGradientOp>(bound), std::vector{y}).front();
}

std::optional<float> combine_gradient_bound(const std::string& method) {
  if (method.empty()) return {};
  if (method == "rowwise") return 0.0f;
  const std::string_view fixed = "fixed,";
  float bound = 0;
  const char* const begin = method.data() + std::min(fixed.size(), method.size());
  const auto [end, problem] = std::from_chars(begin, method.data() + method.size(), bound);
  if (!method.starts_with(fixed) || problem != std::errc() || end != method.data() + method.size() ||
      !(bound > 0 && bound <= kLargestE5m2 * 1e30f))
    fail_usage("[model] moe_quantize_combine_bwd_method={}: expected rowwise, or fixed,B with B above 0",
               method);
  return bound;
}

}  // namespace switchyard

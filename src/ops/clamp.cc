#include "ops/clamp.h"

#include "kernels/pointwise/clamp.h"

namespace switchyard {
namespace {

class ClampOp : public Op {
 public:
  explicit ClampOp(float bound) : bound_(bound) {}
  std::string_view name() const override { return "clamp"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    CHECK(in[0].sharding.partial.empty(), "[clamp] {}", to_string(in[0].sharding));
    return {in[0]};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    const Tensor out = c.empty(in[0].dtype(), in[0].shape());
    switchyard::clamp(*c.pool, bound_, in[0].view(), out.view());
    return {out};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    const Tensor x = call.input(0), dx = c.empty(x.dtype(), x.shape());
    clamp_backward(*c.pool, bound_, x.view(), call.grad(0).view(), dx.view());
    return {dx};
  }

 private:
  float bound_;
};

}  // namespace

Array clamp(Context& context, const Array& x, float bound) {
  return never_save(apply_one(context, std::make_shared<ClampOp>(bound), {x}));
}

}  // namespace switchyard

#include "ops/output_gate.h"

#include "ops/reshard.h"

namespace switchyard {
namespace {

class OutputGateOp : public Op {
 public:
  explicit OutputGateOp(GateCurve curve) : curve_(curve) {}
  std::string_view name() const override { return "output_gate"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    CHECK(in[0].dtype == in[1].dtype && (in[0].local == in[1].local || in[1].local.back() == 1),
          "[output_gate] {} and {}", to_string(in[0].local), to_string(in[1].local));
    return {in[0]};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    const Tensor out = c.empty(in[0].dtype(), in[0].shape());
    switchyard::output_gate(*c.pool, {in[0].view(), in[1].view(), out.view(), curve_});
    return {out};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    const Tensor x = call.input(0), gate = call.input(1);
    const Tensor dx = c.empty(x.dtype(), x.shape()), dgate = c.empty(gate.dtype(), gate.shape());
    output_gate_backward(*c.pool, {.x = x.view(),
                                   .gate = gate.view(),
                                   .dout = call.grad(0).view(),
                                   .dx = dx.view(),
                                   .dgate = dgate.view(),
                                   .curve = curve_});
    return {dx, dgate};
  }

 private:
  GateCurve curve_;
};

}  // namespace

Array output_gate(Context& context, const Array& x, const Array& gate, GateCurve curve) {
  CHECK(!x.sharding().dims.empty() && x.sharding().partial.empty() && gate.sharding().partial.empty(),
        "[output_gate] {} and {}", to_string(x.sharding()), to_string(gate.sharding()));
  return never_save(apply_one(context, std::make_shared<OutputGateOp>(curve), {x, gate}));
}

}  // namespace switchyard

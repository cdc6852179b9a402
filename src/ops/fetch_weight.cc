#include "ops/fetch_weight.h"

#include "core/offload.h"

namespace switchyard {
namespace {

class StartedFetch : public StartedOp {
 public:
  StartedFetch(Context& c, const Tensor& weight) : arriving_(*c.offload, weight) {}
  std::vector<Tensor> finish(Context&) override { return {arriving_.arrived()}; }

 private:
  ArrivingTensor arriving_;
};

class FetchWeight : public Op {
 public:
  std::string_view name() const override { return "fetch_weight"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    ArrayInfo out = in[0];
    out.shared = {};  // each rank has a copy of its own
    return {out};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    return start(c, in)->finish(c);
  }
  std::unique_ptr<StartedOp> start(Context& c, std::span<const Tensor> in) const override {
    return std::make_unique<StartedFetch>(c, in[0]);
  }
  std::vector<Tensor> backward(Context&, const BackwardCall& call) const override {
    return {call.take_grad(0)};
  }
  std::uint32_t needs_inputs(std::uint32_t) const override { return 0; }
  bool fetches() const override { return true; }
};

}  // namespace

Array fetch_weight(Context& context, const Array& weight) {
  CHECK(context.offload != nullptr, "{} of a device that does not offload", to_string(weight.shape()));
  const Array here = never_save(apply_one(context, std::make_shared<FetchWeight>(), {weight}));
  here.value()->weight = true;
  return here;
}

}  // namespace switchyard

#include "train/step_report.h"

namespace switchyard {
namespace {

constexpr std::size_t kPartAlignment = 256;

}  // namespace

StepReport::StepReport(const Memory& memory, const Sizes& sizes)
    : sizes_(sizes), block_(memory.zeros(DType::i32, {static_cast<std::int64_t>(offsets().back() / 4)})) {}

std::vector<std::size_t> StepReport::offsets() const {
  const auto bytes = [](std::int64_t count, std::size_t each) {
    return static_cast<std::size_t>(count) * each;
  };
  const Sizes& s = sizes_;
  std::vector<std::size_t> result{0};
  for (const std::size_t part :
       {bytes(s.places * s.slots, sizeof(double)), bytes(s.places + 1, sizeof(double)),
        bytes(s.kinds * s.losses, sizeof(float)), bytes(s.kinds, sizeof(double)), sizeof(float),
        bytes(s.places, sizeof(double)), bytes(s.layers * s.passes * s.experts, sizeof(std::int32_t))})
    result.push_back(result.back() + (part + kPartAlignment - 1) / kPartAlignment * kPartAlignment);
  return result;
}

Tensor StepReport::part(DType dtype, const Shape& shape, std::size_t number) const {
  return {dtype, shape, block_.buffer(), offsets()[number]};
}

StepReport StepReport::on_host(Context& context) const {
  StepReport host;
  host.sizes_ = sizes_;
  host.block_ =
      read_back(context, block_, "step report", [&] { return Memory().zeros(DType::i32, block_.shape()); });
  return host;
}

}  // namespace switchyard

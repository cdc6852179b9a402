#include "ops/row_adapters.h"

#include "kernels/moe/row_adapters.h"
#include "ops/reshard.h"

namespace switchyard {
namespace {

class PartExpertsOp : public Op {
 public:
  explicit PartExpertsOp(std::int64_t numbers) : numbers_(numbers) {}
  std::string_view name() const override { return "part_experts"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    return {in[0]};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    const Tensor out = c.empty(DType::i32, in[0].shape());
    const Shape choices{in[1].size(), in[0].shape().back()};
    switchyard::part_experts(*c.pool, {in[0].view().reshaped(choices), in[1].view().reshaped({in[1].size()}),
                                       numbers_, out.view().reshaped(choices)});
    return {out};
  }
  bool differentiable() const override { return false; }

 private:
  std::int64_t numbers_;
};

class JoinExpertsOp : public Op {
 public:
  explicit JoinExpertsOp(std::int64_t numbers) : numbers_(numbers) {}
  std::string_view name() const override { return "join_experts"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    return {ragged_info(in[0].dtype, 1)};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    const std::int64_t experts = in[0].size() / numbers_;
    const Tensor out = c.empty(DType::i32, {experts});
    switchyard::join_experts(*c.pool, {in[0].view().reshaped({experts, numbers_}), out.view()});
    return {out};
  }
  bool differentiable() const override { return false; }

 private:
  std::int64_t numbers_;
};

}  // namespace

Array part_experts(Context& context, const Array& ids, const Array& adapters, std::int64_t numbers) {
  return apply_one(
      context, std::make_shared<PartExpertsOp>(numbers),
      {ids, reshard(context, adapters, Sharding{{ids.sharding().dims[0], ids.sharding().dims[1]}, {}})});
}

Array join_experts(Context& context, const Array& sizes, std::int64_t numbers) {
  return apply_one(context, std::make_shared<JoinExpertsOp>(numbers), {sizes});
}

}  // namespace switchyard

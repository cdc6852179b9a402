#include "ops/row_adapters.h"

#include "kernels/moe/row_adapters.h"
#include "ops/reshard.h"

namespace switchyard {
namespace {

class KeepAdapterOp : public Op {
 public:
  explicit KeepAdapterOp(std::int64_t rank) : rank_(rank) {}
  std::string_view name() const override { return "keep_adapter"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    return {in[0]};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    const Tensor out = c.empty(in[0].dtype(), in[0].shape());
    const std::int64_t columns = in[0].shape().back();
    const Shape rows{in[0].size() / columns, columns};
    switchyard::keep_adapter(*c.pool, {in[0].view().reshaped(rows), in[1].view().reshaped({in[1].size()}),
                                       rank_, out.view().reshaped(rows)});
    return {out};
  }
  bool differentiable() const override { return false; }

 private:
  std::int64_t rank_;
};

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

// The numbers laid out as the first two dims of x.
Array like_tokens(Context& context, const Array& adapters, const Array& x) {
  return reshard(context, adapters, Sharding{{x.sharding().dims[0], x.sharding().dims[1]}, {}});
}

}  // namespace

Array keep_adapter(Context& context, const Array& low, const Array& adapters, std::int64_t rank) {
  CHECK(low.sharding().dims.back().empty(), "[keep_adapter] {}", to_string(low.sharding()));
  return apply_one(context, std::make_shared<KeepAdapterOp>(rank),
                   {low, like_tokens(context, adapters, low)});
}

Array part_experts(Context& context, const Array& ids, const Array& adapters, std::int64_t numbers) {
  return apply_one(context, std::make_shared<PartExpertsOp>(numbers),
                   {ids, like_tokens(context, adapters, ids)});
}

Array join_experts(Context& context, const Array& sizes, std::int64_t numbers) {
  return apply_one(context, std::make_shared<JoinExpertsOp>(numbers), {sizes});
}

}  // namespace switchyard

#include "moe/rows.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/moe/plan_rows.h"
#include "kernels/moe/ragged_rows.h"
#include "moe/assumed_load.h"
#include "ops/basic.h"

namespace switchyard {

TensorView matrix_of(const Tensor& x) {
  const std::int64_t m = x.shape().back();
  std::int64_t rows = 1;
  for (std::size_t i = 0; i + 1 < x.rank(); ++i) rows *= x.dim(i);
  return x.view().reshaped({rows, m});
}

namespace {

// Views one number for each (token, slot) pair as [tokens, slots].
TensorView of_slots(const Tensor& x, std::int64_t tokens) {
  return x.view().reshaped({tokens, tokens == 0 ? 1 : x.size() / tokens});
}

}  // namespace

Tensor sum_rows(Context& c, const Tensor& rows, const Tensor& position, const Shape& token_shape,
                const Tensor& w) {
  const Tensor out = c.empty(rows.dtype(), token_shape);
  const TensorView sums = matrix_of(out);
  ragged_gather_reduce(*c.pool, {.x = rows.view(),
                                 .position = of_slots(position, sums.dim(0)),
                                 .w = w.defined() ? of_slots(w, sums.dim(0)) : TensorView(),
                                 .out = sums});
  return out;
}

namespace {

// largest remainder: parts of `total` proportional to `counts`.
std::vector<std::int64_t> proportional(const std::vector<std::int64_t>& counts, std::int64_t total) {
  const std::int64_t sum = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  std::vector<std::int64_t> kept;
  std::vector<std::size_t> order(counts.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (auto n : counts) kept.push_back(n * total / sum);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return counts[a] * total % sum > counts[b] * total % sum;
  });
  std::int64_t left = total - std::accumulate(kept.begin(), kept.end(), std::int64_t{0});
  for (std::size_t i = 0; left > 0; ++i, --left) ++kept[order[i]];
  return kept;
}

// Rows of each expert [first, first + count) among ids: i32 [count].
class CountIdsOp : public Op {
 public:
  CountIdsOp(std::int64_t first, std::int64_t count) : first_(first), count_(count) {}
  std::string_view name() const override { return "count_ids"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo>) const override {
    return {ragged_info(DType::i32, 1)};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    const Tensor counts = c.empty(DType::i32, {count_});
    count_ids(*c.pool, in[0].view(), first_, counts.view());
    return {counts};
  }
  bool differentiable() const override { return false; }

 private:
  std::int64_t first_, count_;
};

class PlanRowsOp : public Op {  // inputs: ids [..., K], kept [count], and skipped [count] or nothing
 public:
  PlanRowsOp(std::int64_t first, std::int64_t rows) : first_(first), rows_(rows) {}
  std::string_view name() const override { return "plan_rows"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo>) const override {
    return std::vector<ArrayInfo>(3, ragged_info(DType::i32, 1));
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    const Tensor rows = c.empty(DType::i32, {rows_}), tokens = c.empty(DType::i32, {rows_}),
                 position = c.empty(DType::i32, {in[0].size()});
    plan_rows(*c.pool, {.ids = in[0].view(),
                        .first = first_,
                        .kept = in[1].view(),
                        .assignments = rows.view(),
                        .tokens = tokens.view(),
                        .position = position.view(),
                        .skipped = in.size() > 2 ? in[2].view() : TensorView()});
    return {rows, tokens, position};
  }
  std::vector<Tensor> backward(Context&, const BackwardCall& call) const override {
    return std::vector<Tensor>(call.inputs());
  }
  bool differentiable() const override { return false; }

 private:
  std::int64_t first_, rows_;
};

}  // namespace

Tensor fan_out(Context& c, const Tensor& x, const Tensor& tokens, const Tensor& w) {
  const Tensor out = c.empty(x.dtype(), {tokens.size(), x.shape().back()});
  ragged_gather(*c.pool, {.x = matrix_of(x), .index = tokens.view(), .w = w.view(), .out = out.view()});
  return out;
}

namespace {

// The weight of each row: weights[rows[i]], [R].
Tensor weights_of_rows(Context& c, const Tensor& weights, const Tensor& rows) {
  const Tensor out = c.empty(DType::f32, {rows.size()});
  ragged_gather(*c.pool, {.x = weights.view().reshaped({weights.size(), 1}),
                          .index = rows.view(),
                          .w = {},
                          .out = out.view().reshaped({rows.size(), 1})});
  return out;
}

class GatherRowsOp : public Op {  // inputs: x, tokens, position
 public:
  std::string_view name() const override { return "gather_rows"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    return {ragged_info(in[0].dtype, 2)};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    return {fan_out(c, in[0], in[1])};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    return {sum_rows(c, call.grad(0), call.input(2), call.input_info(0).local), Tensor(), Tensor()};
  }
  std::uint32_t needs_inputs(std::uint32_t) const override { return 4; }
};

class CombineRowsOp : public Op {  // inputs: rows, tokens, position
 public:
  explicit CombineRowsOp(ArrayInfo result) : result_(std::move(result)) {}
  std::string_view name() const override { return "combine_rows"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo>) const override {
    return {result_};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    return {sum_rows(c, in[0], in[2], result_.local)};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    return {fan_out(c, call.grad(0), call.input(1)), Tensor(), Tensor()};
  }
  std::uint32_t needs_inputs(std::uint32_t) const override { return 2; }

 private:
  ArrayInfo result_;
};

// The combine as the reference does it: the weight of a row multiplies the row on its way back to token
// order. Backward is a weighted fan-out gather for the rows and a dot product per row for the weights.
class WeightedCombineRowsOp : public Op {  // inputs: rows, tokens, position, weights [..., K], row numbers
 public:
  explicit WeightedCombineRowsOp(ArrayInfo result) : result_(std::move(result)) {}
  std::string_view name() const override { return "weighted_combine_rows"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo>) const override {
    return {result_};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    return {sum_rows(c, in[0], in[2], result_.local, in[3])};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    const Tensor rows = call.input(0), position = call.input(2), weights = call.input(3),
                 numbers = call.input(4);
    const Tensor sorted = weights_of_rows(c, weights, numbers);
    const Tensor dweights = c.empty(DType::f32, weights.shape());
    const Tensor& dy = call.grad(0);
    ragged_row_dot(*c.pool, {.dy = matrix_of(dy),
                             .x = rows.view(),
                             .position = of_slots(position, matrix_of(dy).dim(0)),
                             .dw = matrix_of(dweights)});
    return {fan_out(c, dy, call.input(1), sorted), Tensor(), Tensor(), dweights, Tensor()};
  }

 private:
  ArrayInfo result_;
};

class GatherRowWeightsOp : public Op {  // inputs: weights [..., K], rows, position
 public:
  std::string_view name() const override { return "gather_row_weights"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo>) const override {
    return {ragged_info(DType::f32, 1)};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    return {weights_of_rows(c, in[0], in[1])};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    const Tensor dweights = c.empty(DType::f32, call.input_info(0).local);
    const Tensor& dw = call.grad(0);
    const Tensor position = call.input(2);
    ragged_gather_reduce(*c.pool, {.x = dw.view().reshaped({dw.size(), 1}),
                                   .position = position.view().reshaped({position.size(), 1}),
                                   .w = {},
                                   .out = dweights.view().reshaped({position.size(), 1})});
    return {dweights, Tensor(), Tensor()};
  }
  std::uint32_t needs_inputs(std::uint32_t) const override { return 4; }
};

}  // namespace

std::int64_t buffer_rows(double factor, std::int64_t rows, std::int64_t ranks) {
  if (factor <= 0) return -1;
  return static_cast<std::int64_t>(
      std::floor(factor * static_cast<double>(rows) / static_cast<double>(ranks)));
}

std::vector<std::vector<std::int64_t>> keep_rows(const std::vector<std::vector<std::int64_t>>& counts,
                                                 std::int64_t capacity, DropPolicy policy) {
  std::int64_t total = 0;
  for (const auto& source : counts) total += std::accumulate(source.begin(), source.end(), std::int64_t{0});
  auto kept = counts;
  if (capacity < 0 || total <= capacity) return kept;
  if (policy == DropPolicy::prefix) {
    std::int64_t room = capacity;
    for (auto& source : kept) {
      for (auto& n : source) room -= (n = std::min(n, room));
    }
    return kept;
  }
  std::vector<std::int64_t> per_expert(counts[0].size(), 0);
  for (const auto& source : counts) {
    for (std::size_t e = 0; e < source.size(); ++e) per_expert[e] += source[e];
  }
  auto room = proportional(per_expert, capacity);
  for (auto& source : kept) {
    for (std::size_t e = 0; e < source.size(); ++e) room[e] -= (source[e] = std::min(source[e], room[e]));
  }
  return kept;
}

Array host_indices(Context& context, const std::vector<std::int64_t>& values) {
  Tensor host(Memory(), DType::i32, {static_cast<std::int64_t>(values.size())});
  std::copy(values.begin(), values.end(), host.span<std::int32_t>().begin());
  const Tensor there = context.empty(DType::i32, host.shape());
  copy(host.view(), there.view());
  return make_leaf(there, there.shape(), replicated(1), false);
}

RowPlan plan_kept_rows(Context& context, const Array& ids, std::int64_t first, const Array& kept,
                       std::int64_t rows, const Array& skipped) {
  std::vector<Array> inputs{ids, kept};
  if (skipped.defined()) inputs.push_back(skipped);
  auto out = apply(context, std::make_shared<PlanRowsOp>(first, rows), inputs);
  for (auto& x : out) x = always_keep(x);
  return {out[0], out[1], out[2], kept, {}, rows, rows};
}

std::vector<std::int64_t> read_rows_per_expert(Context& context, const Array& ids, std::int64_t first,
                                               std::int64_t count, std::int64_t experts) {
  const Array counts = apply_one(context, std::make_shared<CountIdsOp>(0, experts), {ids});
  const Tensor host = read_back(context, counts.tensor(), "rows per expert", [&] {
    const std::int64_t slots = ids.shape().back();
    const auto assumed = assumed_rows(context, ids.tensor().size() / slots, slots, experts, first, count);
    Tensor all(Memory(), DType::i32, {experts});
    std::ranges::copy(assumed, all.span<std::int32_t>().begin());
    return all;
  });
  const std::span<const std::int32_t> read = host.span<std::int32_t>();
  return {read.begin(), read.end()};
}

namespace {

// All rows of all experts. A GPU tells nobody how many have an expert.
RowPlan plan_all_rows(Context& context, const Array& ids, std::int64_t experts) {
  const Array counts = always_keep(apply_one(context, std::make_shared<CountIdsOp>(0, experts), {ids}));
  if (context.abstract() || context.memory.device().is_gpu())
    return plan_kept_rows(context, ids, 0, counts, ids.tensor().size());
  const Tensor sizes = to_host(counts.tensor());  // where it is
  const auto each = sizes.span<std::int32_t>();
  return plan_kept_rows(context, ids, 0, counts, std::accumulate(each.begin(), each.end(), std::int64_t{0}));
}

}  // namespace

RowPlan plan_rows(Context& context, const Array& ids, std::int64_t first, std::int64_t count,
                  std::int64_t experts, double buffer_factor, DropPolicy policy) {
  if (count == experts && (buffer_factor <= 0 || buffer_factor >= 1))
    return plan_all_rows(context, ids, experts);
  const std::vector<std::int64_t> counts = read_rows_per_expert(context, ids, first, count, experts);
  const std::int64_t assigned = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  const std::vector<std::int64_t> sizes(counts.begin() + first, counts.begin() + first + count);
  const std::vector<std::int64_t> kept =
      keep_rows({sizes}, buffer_rows(buffer_factor, assigned, experts / count), policy)[0];
  RowPlan plan = plan_kept_rows(context, ids, first, host_indices(context, kept),
                                std::accumulate(kept.begin(), kept.end(), std::int64_t{0}));
  plan.routed = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  plan.assigned = assigned;
  for (std::size_t e = 0; e < sizes.size(); ++e)
    plan.dropped.push_back(static_cast<double>(sizes[e] - kept[e]));
  return plan;
}

Array gather_rows(Context& context, const Array& x, const RowPlan& plan) {
  return never_save(rows_of_tokens(context, x, plan));
}

Array rows_of_tokens(Context& context, const Array& x, const RowPlan& plan) {
  return apply_one(context, std::make_shared<GatherRowsOp>(), {x, plan.tokens, plan.position});
}

Array gather_row_weights(Context& context, const Array& weights, const RowPlan& plan) {
  return apply_one(context, std::make_shared<GatherRowWeightsOp>(), {weights, plan.rows, plan.position});
}

Array combine_rows(Context& context, const Array& rows, const RowPlan& plan, const ArrayInfo& like,
                   const Sharding& sharding, const Array& weights) {
  ArrayInfo result = like;
  result.dtype = rows.dtype();
  result.sharding = sharding;
  if (weights.defined()) {
    return apply_one(context, std::make_shared<WeightedCombineRowsOp>(result),
                     {rows, plan.tokens, plan.position, weights, plan.rows});
  }
  return apply_one(context, std::make_shared<CombineRowsOp>(result), {rows, plan.tokens, plan.position});
}

}  // namespace switchyard

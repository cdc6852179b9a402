#include "moe/rows.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/ragged_rows.h"
#include "moe/assumed_load.h"
#include "ops/basic.h"

namespace switchyard {

Tensor sum_rows(Context& c, const Tensor& rows, const Tensor& position, const Shape& token_shape,
                const float* w) {
  const std::int64_t m = rows.shape().back(),
                     tokens = num_elements(token_shape) / std::max<std::int64_t>(1, token_shape.back());
  Tensor out(rows.dtype(), token_shape);
  const std::int64_t slots = tokens == 0 ? 1 : position.size() / tokens;
  ragged_gather_reduce(*c.pool, rows.dtype(), rows.raw(), m, position.span<std::int32_t>(), slots, 0,
                       rows.dim(0), w, out.raw(), out.dtype());
  return out;
}

namespace {

constexpr std::int64_t kRowsAtOnce = 4096;  // of single numbers

Tensor index_tensor(const std::vector<std::int32_t>& values) {
  return Tensor::of<std::int32_t>({static_cast<std::int64_t>(values.size())}, values);
}

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

class PlanRowsOp : public Op {
 public:
  PlanRowsOp(std::int64_t first, std::int64_t count, std::int64_t experts, std::int64_t capacity,
             DropPolicy policy)
      : first_(first), count_(count), experts_(experts), capacity_(capacity), policy_(policy) {}
  std::string_view name() const override { return "plan_rows"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo>) const override {
    return std::vector<ArrayInfo>(5, ragged_info(DType::i32, 1));
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    const auto slots = static_cast<std::int32_t>(in[0].shape().back());
    if (c.abstract()) return assumed(c, in[0].size() / slots, slots);
    const auto ids = in[0].span<std::int32_t>();
    const std::vector<std::int32_t> here = rows_here(ids);
    std::vector<std::int64_t> sizes(static_cast<std::size_t>(count_), 0);
    for (const std::int32_t row : here) ++sizes[local_expert(ids, row)];
    const std::vector<std::int64_t> kept = keep_rows({sizes}, capacity_, policy_)[0];

    std::vector<std::int64_t> next(kept.size(), 0), end(kept.size());  // positions of each expert's rows
    std::inclusive_scan(kept.begin(), kept.end(), end.begin());
    std::copy(end.begin(), std::prev(end.end()), std::next(next.begin()));
    Tensor rows(DType::i32, {end.back()}), tokens(DType::i32, {end.back()}),
        position(DType::i32, {in[0].size()});
    std::fill_n(position.data<std::int32_t>(), position.size(), -1);
    for (const std::int32_t row : here) {
      const std::size_t e = local_expert(ids, row);
      if (next[e] == end[e]) continue;  // no room
      const std::int64_t at = next[e]++;
      rows.data<std::int32_t>()[at] = row;
      tokens.data<std::int32_t>()[at] = row / slots;
      position.data<std::int32_t>()[row] = static_cast<std::int32_t>(at);
    }
    std::vector<std::int32_t> kept32(kept.begin(), kept.end()), dropped;
    for (std::size_t e = 0; e < sizes.size(); ++e)
      dropped.push_back(static_cast<std::int32_t>(sizes[e] - kept[e]));
    return {rows, tokens, position, index_tensor(kept32), index_tensor(dropped)};
  }
  std::vector<Tensor> backward(Context&, const BackwardCall&) const override { return {Tensor()}; }
  bool differentiable() const override { return false; }

 private:
  std::vector<Tensor> assumed(const Context& c, std::int64_t tokens, std::int64_t slots) const {
    const auto all = assumed_rows(c, tokens, slots, experts_, first_, count_);
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(first_);
    const auto kept =
        keep_rows({{begin, begin + static_cast<std::ptrdiff_t>(count_)}}, capacity_, policy_)[0];
    const std::int64_t rows = std::accumulate(kept.begin(), kept.end(), std::int64_t{0});
    return {Tensor(DType::i32, {rows}), Tensor(DType::i32, {rows}), Tensor(DType::i32, {tokens * slots}),
            Tensor(DType::i32, {count_}), Tensor(DType::i32, {count_})};
  }
  std::size_t local_expert(std::span<const std::int32_t> ids, std::int32_t row) const {
    return static_cast<std::size_t>(ids[static_cast<std::size_t>(row)] - first_);
  }
  // The rows whose expert is one of these, in order. The rows of all ranks of a ring pass here, few of them
  // for this rank, so this is the one loop over all of them: a store a row and no branch.
  std::vector<std::int32_t> rows_here(std::span<const std::int32_t> ids) const {
    const auto first = static_cast<std::uint32_t>(first_), count = static_cast<std::uint32_t>(count_);
    const auto is_here = [=](std::int32_t id) { return static_cast<std::uint32_t>(id) - first < count; };
    std::vector<std::int32_t> rows(static_cast<std::size_t>(std::count_if(ids.begin(), ids.end(), is_here)) +
                                   1);
    std::size_t found = 0;  // the last place takes what is not wanted
    for (std::size_t row = 0; row < ids.size(); ++row) {
      rows[found] = static_cast<std::int32_t>(row);
      found += is_here(ids[row]) ? 1 : 0;
    }
    rows.pop_back();
    return rows;
  }

  std::int64_t first_, count_, experts_, capacity_;
  DropPolicy policy_;
};

// Each token's vector to its rows, times w [R] where given: [R, m].
Tensor fan_out(Context& c, const Tensor& x, const Tensor& tokens, const float* w = nullptr) {
  const std::int64_t m = x.shape().back(), rows = tokens.size();
  Tensor out(x.dtype(), {rows, m});
  ragged_gather(*c.pool, x.dtype(), x.raw(), m, tokens.span<std::int32_t>(), 0, rows, w, out.raw());
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
  std::uint32_t needs_inputs() const override { return 4; }
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
  std::uint32_t needs_inputs() const override { return 2; }

 private:
  ArrayInfo result_;
};

// to[i] = weights[rows[i]].
void take_weights(Context& c, const Tensor& weights, const Tensor& rows, float* to) {
  c.pool->for_range(rows.size(), kRowsAtOnce, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) to[i] = weights.data<float>()[rows.data<std::int32_t>()[i]];
  });
}

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
    return {sum_rows(c, in[0], in[2], result_.local, in[3].data<float>())};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    const Tensor rows = call.input(0), position = call.input(2), weights = call.input(3),
                 numbers = call.input(4);
    std::vector<float> sorted(static_cast<std::size_t>(numbers.size()));  // weights in the order of the rows
    take_weights(c, weights, numbers, sorted.data());
    Tensor dweights(DType::f32, weights.shape());
    const Tensor& dy = call.grad(0);
    ragged_row_dot(*c.pool, rows.dtype(), dy.raw(), rows.raw(), rows.shape().back(),
                   position.span<std::int32_t>(), weights.shape().back(), 0, rows.dim(0),
                   dweights.data<float>());
    return {fan_out(c, dy, call.input(1), sorted.data()), Tensor(), Tensor(), dweights, Tensor()};
  }

 private:
  ArrayInfo result_;
};

class GatherRowWeightsOp : public Op {  // inputs: weights [..., K], rows
 public:
  std::string_view name() const override { return "gather_row_weights"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo>) const override {
    return {ragged_info(DType::f32, 1)};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    Tensor out(DType::f32, {in[1].size()});
    take_weights(c, in[0], in[1], out.data<float>());
    return {out};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    Tensor dweights = Tensor::zeros(DType::f32, call.input_info(0).local);
    const Tensor rows = call.input(1);
    const float* from = call.grad(0).data<float>();
    c.pool->for_range(rows.size(), kRowsAtOnce, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i)
        dweights.data<float>()[rows.data<std::int32_t>()[i]] = from[i];
    });
    return {dweights, Tensor()};
  }
  std::uint32_t needs_inputs() const override { return 2; }
};

}  // namespace

std::int64_t buffer_rows(double factor, std::int64_t tokens, std::int64_t slots, std::int64_t ranks) {
  if (factor <= 0) return -1;
  return static_cast<std::int64_t>(
      std::floor(factor * static_cast<double>(tokens * slots) / static_cast<double>(ranks)));
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

RowPlan plan_rows(Context& context, const Array& ids, std::int64_t first, std::int64_t count,
                  std::int64_t experts, std::int64_t capacity, DropPolicy policy) {
  auto out = apply(context, std::make_shared<PlanRowsOp>(first, count, experts, capacity, policy),
                   std::span(&ids, 1));
  for (auto& x : out) x = always_keep(x);
  return {out[0], out[1], out[2], out[3], out[4]};
}

Array gather_rows(Context& context, const Array& x, const RowPlan& plan) {
  return never_save(apply_one(context, std::make_shared<GatherRowsOp>(), {x, plan.tokens, plan.position}));
}

Array gather_row_weights(Context& context, const Array& weights, const RowPlan& plan) {
  return apply_one(context, std::make_shared<GatherRowWeightsOp>(), {weights, plan.rows});
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

#include "moe/rows.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/elementwise.h"
#include "kernels/gemm.h"
#include "kernels/grouped_matmul.h"
#include "kernels/ragged_rows.h"
#include "moe/assumed_load.h"
#include "ops/basic.h"

namespace switchyard {
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

std::int64_t last(const Tensor& x) {
  return x.shape().back();
}

// Sum of each token's rows, times w [T·K] where given: [tokens, m]. position [T·K].
Tensor sum_rows(Context& c, const Tensor& rows, const Tensor& position, const Shape& token_shape,
                const float* w = nullptr) {
  const std::int64_t m = last(rows),
                     tokens = num_elements(token_shape) / std::max<std::int64_t>(1, token_shape.back());
  Tensor out(rows.dtype(), token_shape);
  const std::int64_t slots = tokens == 0 ? 1 : position.size() / tokens;
  ragged_gather_reduce(*c.pool, rows.dtype(), rows.raw(), m, position.span<std::int32_t>(), slots, 0,
                       rows.dim(0), w, out.raw(), out.dtype());
  return out;
}

// Each token's vector to its rows, times w [R] where given: [R, m].
Tensor fan_out(Context& c, const Tensor& x, const Tensor& tokens, const float* w = nullptr) {
  const std::int64_t m = last(x), rows = tokens.size();
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
    ragged_row_dot(*c.pool, rows.dtype(), dy.raw(), rows.raw(), last(rows), position.span<std::int32_t>(),
                   last(weights), 0, rows.dim(0), dweights.data<float>());
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

std::vector<std::int64_t> sizes_of(const Tensor& t, std::int64_t rows) {
  if (t.abstract()) return even_groups(rows, t.size());
  const auto s = t.span<std::int32_t>();
  return std::vector<std::int64_t>(s.begin(), s.end());
}

// dlhs and drhs of a grouped product of `rows` and `weights` with the groups of input `sizes`.
std::vector<Tensor> gmm_gradients(Context& c, const BackwardCall& call, const Tensor& dy, std::size_t rows,
                                  std::size_t weights, std::size_t sizes) {
  const auto groups = sizes_of(call.input(sizes), dy.dim(0));
  const ArrayInfo& info = call.input_info(weights);
  const std::int64_t k = info.local[1], n = info.local[2];
  std::vector<Tensor> grads(call.inputs());
  if (call.wanted(rows)) {
    grads[rows] = Tensor(dy.dtype(), {dy.dim(0), k});
    gmm_dlhs(*c.pool, dy.dtype(), dy.raw(), call.input(weights).raw(), groups, k, n, grads[rows].raw());
  }
  if (call.wanted(weights)) {
    grads[weights] = Tensor(info.dtype, info.local);
    gmm_drhs(*c.pool, dy.dtype(), call.input(rows).raw(), dy.raw(), groups, k, n, grads[weights].raw(),
             info.dtype);
  }
  return grads;
}

class GmmOp : public Op {  // inputs: rows [R,K], weights [G,K,N], sizes [G]
 public:
  std::string_view name() const override { return "gmm"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    return {ragged_info(in[0].dtype, 2)};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    Tensor out(in[0].dtype(), {in[0].dim(0), in[1].dim(2)});
    gmm(*c.pool, in[0].dtype(), in[0].raw(), in[1].raw(), nullptr, sizes_of(in[2], in[0].dim(0)),
        in[1].dim(1), in[1].dim(2), out.raw());
    return {out};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    return gmm_gradients(c, call, call.grad(0), 0, 1, 2);
  }
};

// The sum of grouped products so far and one more: a grouped product whose K is cut into chunks. The sum is
// float32 until the last chunk, which gives the rows' dtype.
class AddGmmOp
    : public Op {  // inputs: rows [R,K], weights [G,K,N], sizes [G], sum [R,N] f32 but for the first chunk
 public:
  explicit AddGmmOp(bool last) : last_(last) {}
  std::string_view name() const override { return "add_gmm"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    return {ragged_info(last_ ? in[0].dtype : DType::f32, 2)};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    const std::int64_t k = in[1].dim(1), n = in[1].dim(2);
    Tensor sum = in.size() == 4 ? in[3].clone() : Tensor::zeros(DType::f32, {in[0].dim(0), n});
    std::int64_t row = 0, group = 0;
    for (const std::int64_t rows : sizes_of(in[2], in[0].dim(0))) {
      GemmArgs args;
      args.m = rows, args.n = n, args.k = k;
      args.dtype = in[0].dtype();
      args.a = in[0].raw() + static_cast<std::size_t>(row * k) * size_of(in[0].dtype());
      args.b = in[1].raw() + static_cast<std::size_t>(group * k * n) * size_of(in[1].dtype());
      args.c = sum.raw() + static_cast<std::size_t>(row * n) * sizeof(float);
      args.lda = k, args.ldb = args.ldc = n;
      args.accumulate = true;
      if (rows > 0) gemm(*c.pool, args);
      row += rows;
      ++group;
    }
    return {last_ ? converted(c, sum, in[0].dtype()) : sum};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    const Tensor& dy = call.grad(0);
    const DType dtype = call.input_info(0).dtype;
    std::vector<Tensor> grads = gmm_gradients(c, call, converted(c, dy, dtype), 0, 1, 2);
    if (call.inputs() == 4) grads[3] = converted(c, dy, DType::f32);
    return grads;
  }
  std::uint32_t needs_inputs() const override { return 7; }

 private:
  static Tensor converted(Context& c, const Tensor& x, DType dtype) {
    if (x.dtype() == dtype) return x;
    Tensor y(dtype, x.shape());
    convert(*c.pool, x.dtype(), x.raw(), dtype, y.raw(), x.size());
    return y;
  }
  bool last_;
};

// Gate and up of the rows: x[tokens] · wi_0 and · wi_1, the rows never copied where the kernel looks them up.
// Inputs: wi_0, wi_1 [G,M,H], sizes [G], x; with a plan x is in token order and tokens [R], position [T·K]
// follow, else x holds the rows [R,M].
class GateUpOp : public Op {
 public:
  std::string_view name() const override { return "gate_up"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    return {ragged_info(in[3].dtype, 2), ragged_info(in[3].dtype, 2)};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    const Tensor& x = in[3];
    const std::int64_t rows = in.size() > 4 ? in[4].size() : x.dim(0), width = in[0].dim(2);
    Tensor gate(x.dtype(), {rows, width}), up(x.dtype(), {rows, width});
    if (rows == 0) return {gate, up};
    gmm_pair(*c.pool, x.dtype(), x.raw(), in.size() > 4 ? index_of(in[4]) : Index{}, in[0].raw(), in[1].raw(),
             sizes_of(in[2], rows), in[0].dim(1), width, gate.raw(), up.raw());
    return {gate, up};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    const ArrayInfo& weights = call.input_info(0);
    const std::int64_t k = weights.local[1], n = weights.local[2];
    const bool planned = call.inputs() > 4;
    const Tensor dgate = whole(call, 0, n), dup = whole(call, 1, n);
    const std::int64_t rows = dgate.dim(0);
    const auto group_sizes = sizes_of(call.input(2), rows);
    const DType dtype = dgate.dtype();
    std::vector<Tensor> grads(call.inputs());
    if (call.wanted(0) || call.wanted(1)) {
      const Tensor x = call.input(3);
      grads[0] = Tensor(weights.dtype, weights.local);
      grads[1] = Tensor(weights.dtype, weights.local);
      gmm_drhs_pair(*c.pool, dtype, x.raw(), planned ? index_of(call.input(4)) : Index{}, dgate.raw(),
                    dup.raw(), group_sizes, k, n, grads[0].raw(), grads[1].raw(), weights.dtype);
    }
    if (call.wanted(3)) {
      Tensor drows(dtype, {rows, k});
      gmm_dlhs_pair(*c.pool, dtype, dgate.raw(), dup.raw(), call.input(0).raw(), call.input(1).raw(),
                    group_sizes, k, n, drows.raw());
      grads[3] = planned ? sum_rows(c, drows, call.input(5), call.input_info(3).local) : drows;
    }
    return grads;
  }

 private:
  using Index = std::span<const std::int32_t>;
  static Index index_of(const Tensor& tokens) { return tokens.span<std::int32_t>(); }
  // The gradient of an output, zeros where none came.
  static Tensor whole(const BackwardCall& call, std::size_t output, std::int64_t width) {
    if (call.grad(output).defined()) return call.grad(output);
    const Tensor& other = call.grad(1 - output);
    return Tensor::zeros(other.dtype(), {other.dim(0), width});
  }
};

class WeightedSwigluOp : public Op {
 public:
  std::string_view name() const override { return "weighted_swiglu"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    return {in[0].ragged ? ragged_info(in[0].dtype, 2) : in[0]};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    Tensor out(in[0].dtype(), in[0].shape());
    switchyard::swiglu(*c.pool, out.dtype(), in[0].raw(), in[1].raw(), in[2].data<float>(), in[2].size(),
                       last(out), out.raw());
    return {out};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    const Tensor gate = call.input(0), up = call.input(1), w = call.input(2);
    Tensor dgate(gate.dtype(), gate.shape()), dup(gate.dtype(), gate.shape()), dw(DType::f32, w.shape());
    swiglu_backward(*c.pool, gate.dtype(), gate.raw(), up.raw(), w.data<float>(), call.grad(0).raw(),
                    w.size(), last(gate), dgate.raw(), dup.raw(), dw.data<float>());
    return {dgate, dup, dw};
  }
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

Array weighted_swiglu(Context& context, const Array& gate, const Array& up, const Array& weights) {
  return never_save(apply_one(context, std::make_shared<WeightedSwigluOp>(), {gate, up, weights}));
}

namespace {

// The experts' gate and up projections, before the activation.
std::pair<Array, Array> up_projections(Context& context, const ChunkOf& x, std::int64_t chunks,
                                       const RowPlan& plan, const Array& wi_0, const Array& wi_1) {
  if (chunks == 1) {
    std::vector<Array> inputs{wi_0, wi_1, plan.sizes, x(0)};
    if (plan.tokens.defined()) inputs.insert(inputs.end(), {plan.tokens, plan.position});
    const auto pair = apply(context, std::make_shared<GateUpOp>(), inputs);
    return {pair[0], pair[1]};
  }
  const auto pieces_0 = chunk_sequence(context, wi_0, chunks),
             pieces_1 = chunk_sequence(context, wi_1, chunks);
  Array gate, up;
  for (std::int64_t i = 0; i < chunks; ++i) {
    const auto product = std::make_shared<AddGmmOp>(i + 1 == chunks);
    const Array piece = x(i), rows = plan.tokens.defined() ? gather_rows(context, piece, plan) : piece;
    const auto add_to = [&](const Array& sum, const Array& weights) {
      const Array w = never_save(weights);
      return i == 0 ? apply_one(context, product, {rows, w, plan.sizes})
                    : apply_one(context, product, {rows, w, plan.sizes, sum});
    };
    gate = add_to(gate, pieces_0[static_cast<std::size_t>(i)]);
    up = add_to(up, pieces_1[static_cast<std::size_t>(i)]);
  }
  return {gate, up};
}

}  // namespace

Array expert_mlp(Context& context, const ChunkOf& x, std::int64_t chunks, const RowPlan& plan,
                 const Array& row_weights, const Array& wi_0, const Array& wi_1, const Array& wo) {
  auto [gate, up] = up_projections(context, x, chunks, plan, wi_0, wi_1);
  gate = checkpoint_name(gate, "moe_mlpwi_0");
  up = checkpoint_name(up, "moe_mlpwi_1");
  const Array hidden =
      row_weights.defined() ? weighted_swiglu(context, gate, up, row_weights) : swiglu(context, gate, up);
  return checkpoint_name(apply_one(context, std::make_shared<GmmOp>(), {hidden, wo, plan.sizes}),
                         "moe_mlpwo");
}

}  // namespace switchyard

#include "ops/attention.h"

#include <algorithm>

#include "kernels/attention/attention.h"
#include "kernels/attention/attention_sinks.h"
#include "kernels/attention/head_scores.h"
#include "kernels/attention/rope.h"
#include "kernels/attention/rope_tables.h"
#include "kernels/pointwise/strided_copy.h"
#include "kernels/pointwise/sum_over_dim.h"
#include "ops/kv_heads.h"
#include "ops/reshard.h"
#include "ops/sequence_balance.h"

namespace switchyard {
namespace {

class RopeTablesOp : public Op {
 public:
  RopeTablesOp(std::vector<double> frequencies, double amplitude, const PositionGrowth& growth)
      : frequencies_(std::move(frequencies)), amplitude_(amplitude), growth_(growth) {}
  std::string_view name() const override { return "rope_tables"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    ArrayInfo table = in[0];
    table.dtype = DType::f32;
    table.shape.push_back(static_cast<std::int64_t>(frequencies_.size()));
    table.local.push_back(table.shape.back());
    table.sharding.dims.push_back({});
    return {table, table};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    Shape shape = in[0].shape();
    shape.push_back(static_cast<std::int64_t>(frequencies_.size()));
    const Tensor cos = c.empty(DType::f32, shape), sin = c.empty(DType::f32, shape);
    switchyard::rope_tables(*c.pool,
                            {in[0].view(), frequencies_, amplitude_, cos.view(), sin.view(), growth_});
    return {cos, sin};
  }
  bool differentiable() const override { return false; }

 private:
  std::vector<double> frequencies_;
  double amplitude_;
  PositionGrowth growth_;
};

class RopeOp : public Op {
 public:
  RopeOp(std::int64_t offset, bool interleaved) : offset_(offset), interleaved_(interleaved) {}
  std::string_view name() const override { return "rope"; }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    return {rotated(c, in[0], in[1], in[2], false)};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    return {rotated(c, call.grad(0), call.input(1), call.input(2), true), Tensor(), Tensor()};
  }
  std::uint32_t needs_inputs(std::uint32_t) const override { return 6; }

 private:
  Tensor rotated(Context& c, const Tensor& x, const Tensor& cos, const Tensor& sin, bool inverse) const {
    const Tensor y = c.empty(x.dtype(), x.shape());
    const std::int64_t width = x.shape().back(), heads = x.rank() == 4 ? x.dim(2) : 1,
                       dim = 2 * cos.shape().back(), end = offset_ + dim;
    const Shape shape{x.dim(0) * x.dim(1), heads, width};
    const TensorView from = x.view().reshaped(shape), to = y.view().reshaped(shape);
    const auto keep = [&](std::int64_t begin, std::int64_t count) {  // the dims that are not rotated
      if (count > 0) strided_copy(*c.pool, from.slice(2, begin, count), to.slice(2, begin, count));
    };
    keep(0, offset_);
    keep(end, width - end);
    switchyard::rope(*c.pool, {.x = from.slice(2, offset_, dim),
                               .y = to.slice(2, offset_, dim),
                               .cos = cos.view(),
                               .sin = sin.view(),
                               .interleaved = interleaved_,
                               .inverse = inverse});
    return y;
  }
  std::int64_t offset_;
  bool interleaved_;
};

// Inputs: q, k, v, segments of the queries and of the keys, maybe sinks, maybe chosen keys.
class AttentionOp : public Op {
 public:
  struct Parts {
    bool sinks = false, chosen = false;
    bool top = false;  // a third output, each query's largest score
  };
  AttentionOp(const AttentionOptions& options, const Parts& parts) : options_(options), parts_(parts) {}
  std::string_view name() const override { return "attention"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    ArrayInfo out = in[0];
    out.shape.back() = out.local.back() = in[2].shape.back();
    ArrayInfo lse;
    lse.shape = {in[0].shape[0], in[0].shape[2], in[0].shape[1]};
    lse.local = {in[0].local[0], in[0].local[2], in[0].local[1]};
    lse.sharding.dims = {in[0].sharding.dims[0], in[0].sharding.dims[2], in[0].sharding.dims[1]};
    if (parts_.top) return {out, lse, lse};
    return {out, lse};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo> infos) const override {
    const auto heads = kv_heads_of(c, infos[0], infos[1]);
    const Tensor k = take_heads(c, in[1], heads), v = take_heads(c, in[2], heads);
    const Tensor& q = in[0];
    const Tensor out = c.empty(q.dtype(), {q.dim(0), q.dim(1), q.dim(2), v.dim(3)}),
                 lse = c.empty(DType::f32, {q.dim(0), q.dim(2), q.dim(1)});
    const Tensor index = query_places(c, infos[0], options_.balanced),
                 top = parts_.top ? c.empty(DType::f32, lse.shape()) : Tensor();
    switchyard::attention(*c.pool, {.q = q.view(),
                                    .k = k.view(),
                                    .v = v.view(),
                                    .q_index = index.view(),
                                    .q_segment = in[3].view(),
                                    .kv_segment = in[4].view(),
                                    .scale = options_.scale,
                                    .window = options_.window,
                                    .chunk = options_.chunk,
                                    .chosen = parts_.chosen ? in.back().view() : TensorView(),
                                    .out = out.view(),
                                    .lse = lse.view(),
                                    .top = parts_.top ? top.view() : TensorView()});
    if (parts_.sinks) apply_sinks(*c.pool, {in[kSinks].view(), out.view(), lse.view()});
    if (parts_.top) return {out, lse, top};
    return {out, lse};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    const auto heads = kv_heads_of(c, call.input_info(0), call.input_info(1));
    const Tensor q = call.input(0), k = take_heads(c, call.input(1), heads);
    const Tensor v = take_heads(c, call.input(2), heads),
                 index = query_places(c, call.input_info(0), options_.balanced),
                 chosen = parts_.chosen ? call.input(call.inputs() - 1) : Tensor();
    const Tensor out = call.output(0), lse = call.output(1);
    const Tensor q_segment = call.input(3), kv_segment = call.input(4);
    const Tensor dq = c.empty(q.dtype(), q.shape()), dk = c.empty(k.dtype(), k.shape()),
                 dv = c.empty(v.dtype(), v.shape());
    attention_backward(*c.pool, {.forward = {.q = q.view(),
                                             .k = k.view(),
                                             .v = v.view(),
                                             .q_index = index.view(),
                                             .q_segment = q_segment.view(),
                                             .kv_segment = kv_segment.view(),
                                             .scale = options_.scale,
                                             .window = options_.window,
                                             .chunk = options_.chunk,
                                             .chosen = parts_.chosen ? chosen.view() : TensorView(),
                                             .out = out.view(),
                                             .lse = lse.view()},
                                 .dout = call.grad(0).view(),
                                 .dq = dq.view(),
                                 .dk = dk.view(),
                                 .dv = dv.view()});
    std::vector<Tensor> gradients{dq, put_heads(c, dk, heads, call.input_info(1).local),
                                  put_heads(c, dv, heads, call.input_info(2).local), Tensor(), Tensor()};
    if (parts_.sinks) {
      const Tensor sinks = call.input(kSinks), dsinks = c.empty(DType::f32, sinks.shape());
      sink_gradients(*c.pool, {.sinks = sinks.view(),
                               .out = out.view(),
                               .dout = call.grad(0).view(),
                               .lse = lse.view(),
                               .dsinks = dsinks.view()});
      gradients.push_back(dsinks);
    }
    if (parts_.chosen) gradients.emplace_back();
    return gradients;
  }
  std::uint32_t needs_outputs() const override { return 3; }

 private:
  static constexpr std::size_t kSinks = 5;
  AttentionOptions options_;  // balanced: queries are those of balance_sequence
  Parts parts_;
};

}  // namespace

Tensor query_places(const Context& c, const ArrayInfo& q, bool balanced) {
  if (q.sharding.dims[1].empty()) return {};
  const std::int64_t length = q.local[1], half = length / 2;
  const std::int64_t first = local_offset(*c.mesh, c.rank, q.shape, q.sharding)[1];
  const auto [early, late] = balanced ? balanced_halves(c, q) : std::pair(first, first + half);
  std::vector<std::int32_t> places;
  for (std::int64_t i = 0; i < q.local[0] * length; ++i) {
    const std::int64_t s = i % length;
    places.push_back(static_cast<std::int32_t>(s < half ? early + s : late + s - half));
  }
  const Tensor index = c.empty(DType::i32, {q.local[0], length});
  copy(TensorView::of_host(places.data(), index.shape()), index.view());
  return index;
}

RopeTables rope_tables(Context& context, const Array& positions, std::span<const double> frequencies,
                       double amplitude, const PositionGrowth& growth) {
  auto op = std::make_shared<RopeTablesOp>(std::vector<double>(frequencies.begin(), frequencies.end()),
                                           amplitude, growth);
  auto tables = apply(context, op, std::span(&positions, 1));
  return {tables[0], tables[1]};
}

Array rope(Context& context, const Array& x, const RopeTables& tables, std::int64_t offset,
           bool interleaved) {
  return apply_one(context, std::make_shared<RopeOp>(offset, interleaved), {x, tables.cos, tables.sin});
}

Array attention(Context& context, const Array& q, const Array& k, const Array& v, const Array& segments,
                const AttentionOptions& options, const Array* sinks, HeadScores* scores,
                const Array* chosen) {
  const auto whole_length = [&](const Array& x) {
    Sharding to = x.sharding();
    to.dims[1].clear();
    return reshard(context, x, to);
  };
  const Array own = reshard(context, segments, Sharding{{q.sharding().dims[0], q.sharding().dims[1]}, {}});
  AttentionOptions here = options;
  here.balanced = options.balanced && can_balance_sequence(context, q);
  const auto spread = [&](const Array& x) { return here.balanced ? balance_sequence(context, x) : x; };
  std::vector<Array> inputs{spread(q), whole_length(k), whole_length(v), spread(own), whole_length(own)};
  if (sinks != nullptr) inputs.push_back(sinks_of_heads(context, *sinks, q));
  if (chosen != nullptr) inputs.push_back(spread(*chosen));
  const AttentionOp::Parts parts{sinks != nullptr, chosen != nullptr, scores != nullptr};
  const auto results = apply(context, std::make_shared<AttentionOp>(here, parts), inputs);
  const Array& out = results.front();
  if (scores != nullptr) {
    const Tensor top = results[2].tensor();
    scores->first_head = local_offset(*context.mesh, context.rank, q.shape(), q.sharding())[2];
    scores->largest = context.empty(DType::f32, {top.dim(1)});
    largest_scores(*context.pool, top.view(), scores->largest.view());
  }
  return here.balanced ? unbalance_sequence(context, out) : out;
}

Array sinks_of_heads(Context& context, const Array& sinks, const Array& x) {
  CHECK(sinks.dtype() == DType::f32 && sinks.shape() == Shape{x.shape()[2]},
        "[attention] sinks {} of {} for {} heads", to_string(sinks.shape()), name_of(sinks.dtype()),
        x.shape()[2]);
  return reshard(context, sinks, Sharding{{x.sharding().dims[2]}, {}});
}

}  // namespace switchyard

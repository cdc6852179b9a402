#include "ops/indexer.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/attention/index_keys.h"
#include "kernels/attention/index_loss.h"
#include "ops/attention.h"
#include "ops/kv_heads.h"
#include "ops/reshard.h"

namespace switchyard {
namespace {

Array whole_sequence(Context& context, const Array& x) {
  Sharding to = x.sharding();
  to.dims[1].clear();
  return reshard(context, x, to);
}

// The segments of the queries' tokens, and of all keys' tokens.
std::vector<Array> segments_of(Context& context, const Array& segments, const Array& q) {
  const Array own = reshard(context, segments, Sharding{{q.sharding().dims[0], q.sharding().dims[1]}, {}});
  return {own, whole_sequence(context, own)};
}

// f32 or i32 [B,S,width] of queries that are split as q is.
ArrayInfo of_queries(const ArrayInfo& q, DType dtype, std::int64_t width) {
  ArrayInfo info;
  info.dtype = dtype;
  info.shape = {q.shape[0], q.shape[1], width};
  info.local = {q.local[0], q.local[1], width};
  info.sharding.dims = {q.sharding.dims[0], q.sharding.dims[1], {}};
  return info;
}

// Scores of queries [begin, end) of the call's.
void score_queries(Context& c, std::span<const Tensor> in, const Tensor& places, float factor,
                   std::int64_t begin, std::int64_t end, const Tensor& scores) {
  // One batch row at a time where queries are cut: a view has no gaps.
  const auto cut = [&](const Tensor& x) {
    return !x.defined() || end - begin == in[0].dim(1) ? x.view() : x.view().slice(1, begin, end - begin);
  };
  switchyard::index_scores(*c.pool, {.q = cut(in[0]),
                                     .k = in[1].view(),
                                     .weights = cut(in[2]),
                                     .q_index = places.defined() ? cut(places) : TensorView(),
                                     .q_segment = cut(in[3]),
                                     .kv_segment = in[4].view(),
                                     .factor = factor,
                                     .scores = scores.view()});
}

class IndexScoresOp : public Op {  // inputs: q, k, weights, segments of the queries and of the keys
 public:
  explicit IndexScoresOp(float factor) : factor_(factor) {}
  std::string_view name() const override { return "index_scores"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    return {of_queries(in[0], DType::f32, in[1].shape[1])};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo> infos) const override {
    const Tensor scores = c.empty(DType::f32, {in[0].dim(0), in[0].dim(1), in[1].dim(1)});
    score_queries(c, in, query_places(c, infos[0], false), factor_, 0, in[0].dim(1), scores);
    return {scores};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    const Tensor q = call.input(0), k = call.input(1), weights = call.input(2);
    const Tensor dq = c.empty(q.dtype(), q.shape()), dk = c.empty(k.dtype(), k.shape()),
                 dweights = c.empty(DType::f32, weights.shape());
    index_scores_backward(*c.pool, {.q = q.view(),
                                    .k = k.view(),
                                    .weights = weights.view(),
                                    .factor = factor_,
                                    .dscores = call.grad(0).view(),
                                    .dq = dq.view(),
                                    .dk = dk.view(),
                                    .dweights = dweights.view()});
    return {dq, dk, dweights, Tensor(), Tensor()};
  }

 private:
  float factor_;
};

bool has_key(const std::int32_t* bits, std::int64_t key) {
  return (static_cast<std::uint32_t>(bits[key / 32]) >> (key % 32) & 1u) != 0;
}

// Writes the two numbers of replayed_keys() for one query.
void measure_tie(std::span<const float> scores, const std::int32_t* own, const std::int32_t* replayed,
                 float* tie) {
  constexpr float kInfinite = std::numeric_limits<float>::infinity();
  float least = kInfinite, most_left = -kInfinite, largest = 0;
  std::int64_t more = 0, missed = 0;
  bool possible = true;
  for (std::int64_t key = 0; key < std::ssize(scores); ++key) {
    const float score = scores[static_cast<std::size_t>(key)];
    const bool is_own = has_key(own, key), is_replayed = has_key(replayed, key);
    more += is_replayed - is_own;
    missed += is_replayed && !is_own;
    if (score == -kInfinite || std::isnan(score)) {
      possible &= !is_replayed && !std::isnan(score);
      continue;
    }
    largest = std::max(largest, std::abs(score));
    if (is_replayed)
      least = std::min(least, score);
    else
      most_left = std::max(most_left, score);
  }
  possible &= more == 0;
  tie[0] = static_cast<float>(possible ? missed : std::max<std::int64_t>(1, missed));
  const float gap = missed == 0 || largest == 0 ? 0 : (most_left - least) / largest;
  tie[1] = possible ? gap : 1;
}

class ChosenKeysOp : public Op {  // inputs as of IndexScoresOp
 public:
  // `replayed`, `ties`: of replayed_keys(), else undefined.
  ChosenKeysOp(float factor, std::int64_t count, Tensor replayed = {}, Tensor ties = {})
      : factor_(factor), count_(count), replayed_(std::move(replayed)), ties_(std::move(ties)) {}
  std::string_view name() const override { return "chosen_keys"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    return {of_queries(in[0], DType::i32, words_of_keys(in[1].shape[1]))};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo> infos) const override {
    const std::int64_t batch = in[0].dim(0), queries = in[0].dim(1), keys = in[1].dim(1);
    const Tensor places = query_places(c, infos[0], false),
                 chosen = c.empty(DType::i32, {batch, queries, words_of_keys(keys)});
    constexpr std::int64_t kScoresAtOnce = std::int64_t{1} << 22;  // 16 MB
    const std::int64_t most = std::clamp<std::int64_t>(kScoresAtOnce / std::max<std::int64_t>(1, keys), 1,
                                                       std::max<std::int64_t>(1, queries));
    const auto row_of = [](const Tensor& x, std::int64_t b) {
      return x.defined() ? x.slice_rows(b, b + 1) : x;
    };
    // Whole rows of the batch where no query waits, else one row after the other.
    const Tensor scores = c.empty(DType::f32, {1, most, keys});
    for (std::int64_t b = 0; b < batch; ++b) {
      std::vector<Tensor> row;
      for (const Tensor& x : in) row.push_back(row_of(x, b));
      // Where the sequence is whole, queries that are cut out need their places, too.
      const Tensor own = places.defined() || most >= queries ? row_of(places, b) : first_places(c, queries);
      for (std::int64_t first = 0; first < queries; first += most) {
        const std::int64_t count = std::min(most, queries - first);
        const Tensor here = count == most ? scores : c.empty(DType::f32, {1, count, keys});
        score_queries(c, row, own, factor_, first, first + count, here);
        choose_keys(*c.pool, {.scores = here.view(),
                              .count = count_,
                              .bits = chosen.view().rows(b, b + 1).slice(1, first, count)});
        if (replayed_.defined()) measure_ties(to_host(here), to_host(chosen), b, first, count);
      }
    }
    return {replayed_.defined() ? to_device(c.memory, replayed_) : chosen};
  }
  std::vector<Tensor> backward(Context&, const BackwardCall& call) const override {
    return std::vector<Tensor>(call.inputs());
  }
  bool differentiable() const override { return false; }

 private:
  // Measures queries [first, first + count) of batch row b.
  void measure_ties(const Tensor& scores, const Tensor& own, std::int64_t b, std::int64_t first,
                    std::int64_t count) const {
    const auto all = scores.span<float>();
    const std::int64_t keys = scores.dim(2), words = own.dim(2);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t query = b * own.dim(1) + first + i;
      measure_tie(all.subspan(static_cast<std::size_t>(i * keys), static_cast<std::size_t>(keys)),
                  own.data<std::int32_t>() + query * words, replayed_.data<std::int32_t>() + query * words,
                  ties_.data<float>() + query * 2);
    }
  }
  // 0, 1, ..., i32 [1,queries].
  static Tensor first_places(Context& c, std::int64_t queries) {
    std::vector<std::int32_t> places(static_cast<std::size_t>(queries));
    for (std::size_t i = 0; i < places.size(); ++i) places[i] = static_cast<std::int32_t>(i);
    const Tensor there = c.empty(DType::i32, {1, queries});
    copy(TensorView::of_host(places.data(), there.shape()), there.view());
    return there;
  }
  float factor_;
  std::int64_t count_;
  Tensor replayed_, ties_;
};

class ChosenOfScoresOp : public Op {
 public:
  explicit ChosenOfScoresOp(std::int64_t count) : count_(count) {}
  std::string_view name() const override { return "chosen_keys"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    return {of_queries(in[0], DType::i32, words_of_keys(in[0].shape[2]))};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    const Tensor& scores = in[0];
    const Tensor chosen = c.empty(DType::i32, {scores.dim(0), scores.dim(1), words_of_keys(scores.dim(2))});
    choose_keys(*c.pool, {.scores = scores.view(), .count = count_, .bits = chosen.view()});
    return {chosen};
  }
  bool differentiable() const override { return false; }

 private:
  std::int64_t count_;
};

// Summed over all heads, on whichever rank they are. No gradient goes through it.
class HeadSharesOp : public Op {  // inputs: q, k, segments of the queries and of the keys, maybe chosen keys
 public:
  explicit HeadSharesOp(float scale) : scale_(scale) {}
  std::string_view name() const override { return "head_shares"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    return {of_queries(in[0], DType::f32, in[1].shape[1])};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo> infos) const override {
    const Tensor k = take_heads(c, in[1], kv_heads_of(c, infos[0], infos[1]));
    const Tensor places = query_places(c, infos[0], false),
                 shares = c.empty(DType::f32, {in[0].dim(0), in[0].dim(1), k.dim(1)});
    head_shares(*c.pool, {.q = in[0].view(),
                          .k = k.view(),
                          .q_index = places.view(),
                          .q_segment = in[2].view(),
                          .kv_segment = in[3].view(),
                          .chosen = in.size() > 4 ? in[4].view() : TensorView(),
                          .scale = scale_,
                          .shares = shares.view()});
    if (const Axes& axes = infos[0].sharding.dims[2]; !axes.empty())
      c.comm->all_reduce(c.group(axes), shares.view());
    return {shares};
  }
  std::vector<Tensor> backward(Context&, const BackwardCall& call) const override {
    return std::vector<Tensor>(call.inputs());
  }
  bool differentiable() const override { return false; }

 private:
  float scale_;
};

class IndexLossOp : public Op {  // inputs: scores, shares, maybe chosen keys
 public:
  explicit IndexLossOp(double factor) : factor_(factor) {}
  std::string_view name() const override { return "index_loss"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    ArrayInfo loss;
    for (const std::size_t dim : {0u, 1u})
      for (const auto& axis : in[0].sharding.dims[dim]) loss.sharding.partial.push_back(axis);
    return {loss};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo> infos) const override {
    const Tensor loss = c.empty(DType::f32, {});
    switchyard::index_loss(*c.pool, {.scores = in[0].view(),
                                     .shares = in[1].view(),
                                     .chosen = in.size() > 2 ? in[2].view() : TensorView(),
                                     .factor = factor_of(infos[0]),
                                     .loss = loss.view()});
    return {loss};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    const Tensor scores = call.input(0), shares = call.input(1),
                 chosen = call.inputs() > 2 ? call.input(2) : Tensor(),
                 dscores = c.empty(DType::f32, scores.shape());
    index_loss_backward(*c.pool, {.scores = scores.view(),
                                  .shares = shares.view(),
                                  .chosen = chosen.defined() ? chosen.view() : TensorView(),
                                  .factor = factor_of(call.input_info(0)),
                                  .gradient = call.grad(0).view(),
                                  .dscores = dscores.view()});
    std::vector<Tensor> gradients(call.inputs());
    gradients[0] = dscores;
    return gradients;
  }

 private:
  double factor_of(const ArrayInfo& scores) const {
    return factor_ / static_cast<double>(scores.shape[0] * scores.shape[1]);
  }
  double factor_;
};

class DetachOp : public Op {
 public:
  std::string_view name() const override { return "detach"; }
  std::vector<Tensor> forward(Context&, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    return {in[0]};
  }
  std::uint32_t needs_inputs(std::uint32_t) const override { return 0; }
  bool differentiable() const override { return false; }
};

class SubtractMeanOp : public Op {
 public:
  std::string_view name() const override { return "subtract_mean"; }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    return {centred(c, in[0])};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    return {centred(c, call.grad(0))};
  }
  std::uint32_t needs_inputs(std::uint32_t) const override { return 0; }

 private:
  static Tensor centred(Context& c, const Tensor& x) {
    const Tensor y = c.empty(x.dtype(), x.shape());
    switchyard::subtract_mean(*c.pool, x.view(), y.view());
    return y;
  }
};

std::vector<Array> inputs_of(Context& context, const IndexVectors& index, const Array& segments) {
  std::vector<Array> inputs{index.q, whole_sequence(context, index.k), index.weights};
  for (Array& x : segments_of(context, segments, index.q)) inputs.push_back(std::move(x));
  return inputs;
}

}  // namespace

Array chosen_keys(Context& context, const IndexVectors& index, const Array& segments, std::int64_t count) {
  const NoGrad no_grad(context);
  return apply(context, std::make_shared<ChosenKeysOp>(index.factor, count),
               inputs_of(context, index, segments))
      .front();
}

Array replayed_keys(Context& context, const IndexVectors& index, const Array& segments, std::int64_t count,
                    const Tensor& replayed, const Tensor& ties) {
  const NoGrad no_grad(context);
  return apply(context, std::make_shared<ChosenKeysOp>(index.factor, count, replayed, ties),
               inputs_of(context, index, segments))
      .front();
}

Array chosen_of_scores(Context& context, const Array& scores, std::int64_t count) {
  return always_keep(apply_one(context, std::make_shared<ChosenOfScoresOp>(count), {scores}));
}

Array index_scores(Context& context, const IndexVectors& index, const Array& segments) {
  return apply(context, std::make_shared<IndexScoresOp>(index.factor), inputs_of(context, index, segments))
      .front();
}

Array index_loss(Context& context, const Array& scores, const Array& q, const Array& k, const Array& segments,
                 const Array& chosen, const IndexLossOptions& options) {
  std::vector<Array> attended{q, whole_sequence(context, k)};
  for (Array& x : segments_of(context, segments, q)) attended.push_back(std::move(x));
  if (chosen.defined()) attended.push_back(chosen);
  std::vector<Array> inputs{scores,
                            apply(context, std::make_shared<HeadSharesOp>(options.scale), attended).front()};
  if (chosen.defined()) inputs.push_back(chosen);
  return reshard(context, apply(context, std::make_shared<IndexLossOp>(options.factor), inputs).front(),
                 Sharding{});
}

Array detach(Context& context, const Array& x) {
  return apply_one(context, std::make_shared<DetachOp>(), {x});
}

Array subtract_mean(Context& context, const Array& x) {
  CHECK(x.sharding().dims[x.shape().size() - 1].empty(), "[subtract_mean] {}", to_string(x.sharding()));
  return apply_one(context, std::make_shared<SubtractMeanOp>(), {x});
}

}  // namespace switchyard

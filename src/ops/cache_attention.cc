// Attention over cached keys and values.
#include <algorithm>
#include <numeric>

#include "kernels/attention/attention.h"
#include "kernels/attention/attention_sinks.h"
#include "kernels/attention/decode_attention.h"
#include "kernels/attention/index_keys.h"
#include "kernels/attention/int8_vectors.h"
#include "kernels/attention/visible_keys.h"
#include "kernels/moe/ragged_rows.h"
#include "kernels/pointwise/strided_copy.h"
#include "kernels/registry/row_independence.h"
#include "ops/attention_cache.h"
#include "ops/cache_numbers.h"
#include "ops/reshard.h"

namespace switchyard {
namespace {

Array in_slots_of(Context& context, const Array& places, const Sharding& x) {
  return reshard(context, places, Sharding{{x.dims[0], x.dims[1]}, {}});
}

// One slot [1,tokens,heads,D] without its first dim, and scales [1,tokens,heads,1] without the last too.
TensorView vectors_of_slot(const TensorView& x) {
  return x.block(0, {x.dim(1), x.dim(2), x.dim(3)}, {x.stride(1), x.stride(2), x.stride(3)});
}
TensorView scales_of_slot(const TensorView& x) {
  return x.block(0, {x.dim(1), x.dim(2)}, {x.stride(1), x.stride(2)});
}

// The values, and their scales, that are the first part of keys.
TensorView first_part_of(const TokenVectors& keys) {
  return keys.values.view().slice(3, 0, keys.first_part);
}
TensorView scales_of(const TokenVectors& x) {
  return x.scales.defined() ? x.scales.view() : TensorView();
}
TensorView first_scales_of(const TokenVectors& keys) {
  return keys.scales.defined() ? keys.scales.view().slice(3, 0, 1) : TensorView();
}

// The tokens [begin, end) of a slot's memory, [1,tokens,heads,D] of `dtype`: a view, or a dequantised copy.
struct SlotVectors {
  Tensor copied;
  TensorView view;

  SlotVectors(Context& c, const TokenVectors& cached, std::int64_t slot, std::int64_t begin, std::int64_t end,
              DType dtype) {
    const auto in_slot = [&](const Tensor& x) {
      return x.view().rows(slot, slot + 1).slice(1, begin, end - begin);
    };
    view = in_slot(cached.values);
    if (!cached.scales.defined()) return;
    const TensorView values = view, scales = in_slot(cached.scales);
    copied = c.empty(dtype, values.shape());
    view = copied.view();
    std::int64_t column = 0;
    for (std::int64_t part = 0; part < scales.dim(3); ++part) {
      const std::int64_t width = part == 0 ? cached.first_part : values.dim(3) - cached.first_part;
      from_int8(*c.pool, {.x = vectors_of_slot(view.slice(3, column, width)),
                          .values = vectors_of_slot(values.slice(3, column, width)),
                          .scales = scales_of_slot(scales.slice(3, part, 1))});
      column += width;
    }
  }
  // The first `width` numbers of keys: a view for a GPU, whose kernels take it; else a copy without gaps.
  SlotVectors(Context& c, const TensorView& keys, std::int64_t width) : view(keys.slice(3, 0, width)) {
    if (view.on_gpu()) return;
    copied = c.empty(view.dtype(), view.shape());
    strided_copy(*c.pool, view, copied.view());
    view = copied.view();
  }
};

// Inputs: q [B,S,N,D], its positions [B,S], maybe sinks [N] or an indexer's queries and weights.
class CacheAttentionOp : public Op {
 public:
  CacheAttentionOp(const LayerCache& cache, const TokenPlaces& places, const AttentionOptions& options,
                   const CacheChoice* choice)
      : cache_(cache),
        slots_(places.slots),
        tokens_(places.tokens),
        numbers_(places.numbers),
        drafted_(places.drafted),
        options_(options) {
    if (choice == nullptr) return;
    chosen_count_ = choice->count;
    kept_ = choice->kept;
    if (choice->index != nullptr) index_factor_ = choice->index->factor;
  }
  std::string_view name() const override { return "attention"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    ArrayInfo out = in[0];
    out.shape.back() = out.local.back() = value_width();
    return {out};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo> infos) const override {
    const Tensor& q = in[0];
    const Shape shape{q.dim(0), q.dim(1), q.dim(2), value_width()};
    // Zeros for padding, which nobody reads.
    const bool padded = std::find(slots_.begin(), slots_.end(), -1) != slots_.end();
    const Tensor out = padded ? c.zeros(q.dtype(), shape) : c.empty(q.dtype(), shape);
    const TensorView sinks = in.size() == 3 ? in[2].view() : TensorView();
    // With no more keys than a query chooses in every slot there is nothing to choose.
    const bool chooses = kept_ != nullptr && std::ranges::any_of(slots_, [&](std::int64_t slot) {
                           return length_of(slot) > chosen_count_;
                         });
    const IndexQueries index{in, chooses};
    if (infos[0].shape[1] > 1 && !goes_token_by_token(chooses))
      attend_some(c, q, in[1], sinks, index, out);
    else if (chooses)
      attend_chosen(c, q, index, out);
    else
      attend_each(c, q, sinks, out);
    return {out};
  }
  bool differentiable() const override { return false; }

 private:
  // An indexer's q [B,S,H,D] and weights [B,S,H]; undefined where the choice is another layer's.
  struct IndexQueries {
    IndexQueries(std::span<const Tensor> in, bool choose) : chooses(choose) {
      if (choose && in.size() == 4) q = in[2], weights = in[3];
    }
    bool is_here() const { return q.defined(); }
    bool chooses;
    Tensor q, weights;
  };
  // Returns the scores of row b's queries, at `places` [1,S] i32, for the first `keys` cached keys of its
  // slot, f32 [1,S,keys].
  Tensor scores_of(Context& c, const IndexQueries& index, std::int64_t b, const TensorView& places,
                   std::int64_t keys) const {
    const Tensor scores = c.empty(DType::f32, {1, index.q.dim(1), keys});
    const std::int64_t slot = slots_[static_cast<std::size_t>(b)];
    const TensorView cached = cache_.index_keys.values.view().rows(slot, slot + 1).slice(1, 0, keys);
    index_scores(*c.pool, {.q = index.q.view().rows(b, b + 1),
                           .k = cached.reshaped({1, keys, cached.dim(3)}),
                           .weights = index.weights.view().rows(b, b + 1),
                           .q_index = places,
                           .factor = index_factor_,
                           .scores = scores.view()});
    return scores;
  }
  // The keys that one token a slot chooses, by their numbers in all slots of `space` tokens.
  Tensor chosen_ids(Context& c, const IndexQueries& index, std::int64_t batch, std::int64_t space) const {
    const Tensor ids = c.zeros(DType::i32, {batch, chosen_count_});
    for (std::int64_t b = 0; b < batch; ++b) {
      const std::int64_t slot = slots_[static_cast<std::size_t>(b)], keys = length_of(slot);
      if (slot < 0) continue;  // padding
      const auto last = static_cast<std::int32_t>(keys - 1);
      const Tensor place = c.empty(DType::i32, {1, 1});
      copy(TensorView::of_host(&last, place.shape()), place.view());
      choose_keys(*c.pool, {.scores = scores_of(c, index, b, place.view(), keys).view(),
                            .count = chosen_count_,
                            .ids = ids.view().rows(b, b + 1),
                            .first_id = static_cast<std::int32_t>(slot * space)});
    }
    return ids;
  }
  // One token a slot: gathers the keys and values that it chooses and attends to those.
  void attend_chosen(Context& c, const Tensor& q, const IndexQueries& index, const Tensor& out) const {
    const std::int64_t batch = q.dim(0), count = chosen_count_, space = cache_.k.values.dim(1);
    std::vector<std::int32_t> numbers;  // keys chosen for each row, then rows
    for (const std::int64_t slot : slots_)
      numbers.push_back(static_cast<std::int32_t>(std::min(length_of(slot), count)));
    for (std::int64_t b = 0; b < batch; ++b) numbers.push_back(static_cast<std::int32_t>(b));
    const Tensor there = numbers_of(c, numbers_, std::move(numbers));
    if (index.is_here()) kept_->ids = chosen_ids(c, index, batch, space);
    const Tensor& ids = kept_->ids;
    CHECK(ids.defined() && ids.shape() == (Shape{batch, count}),
          "[attention cache] no choice of {} keys for {} rows", count, batch);
    const auto gathered = [&](const TokenVectors& x) {
      const std::int64_t width = x.values.dim(3);
      const Tensor chosen = c.empty(x.values.dtype(), {batch, count, 1, width});
      ragged_gather(*c.pool, {.x = x.values.view().reshaped({x.values.dim(0) * space, width}),
                              .index = ids.view().reshaped({batch * count}),
                              .w = {},
                              .out = chosen.view().reshaped({batch * count, width})});
      return chosen;
    };
    const Tensor k = gathered(cache_.k), v = values_apart() ? gathered(cache_.v) : Tensor();
    decode_attention(*c.pool, {.q = q.view().reshaped({batch, 1, q.dim(2), q.dim(3)}),
                               .k = k.view(),
                               .v = values_apart() ? v.view() : k.view().slice(3, 0, value_width()),
                               .lengths = there.view().rows(0, batch),
                               .rows = there.view().rows(batch, 2 * batch),
                               .scale = options_.scale,
                               .out = out.view().reshaped({batch, 1, q.dim(2), out.dim(3)})});
  }
  // Drafts get the bits that they would have as calls of one token, where bits are to depend on nothing else.
  bool goes_token_by_token(bool chooses) const {
    return drafted_ && rows_are_independent() && !chooses && cache_.overflow.empty();
  }
  // Each token by itself, as in calls of one token a slot: it is its sequence's last then.
  void attend_each(Context& c, const Tensor& q, const TensorView& sinks, const Tensor& out) const {
    const std::int64_t batch = q.dim(0) * q.dim(1), kv_heads = cache_.k.values.dim(2),
                       group = q.dim(2) / kv_heads;
    const StepLists* const step =
        numbers_ == nullptr || q.dim(1) > 1 ? nullptr : numbers_->step_lists(cache_.window);
    const Tensor there = step != nullptr
                             ? step->attended
                             : numbers_of(c, numbers_, attended_numbers(cache_, slots_, tokens_, q.dim(1)));
    decode_attention(*c.pool, {.q = q.view().reshaped({batch, kv_heads, group, q.dim(3)}),
                               .k = cache_.k.values.view(),
                               .v = values_apart() ? cache_.v.values.view() : first_part_of(cache_.k),
                               .lengths = there.view().rows(0, batch),
                               .rows = there.view().rows(batch, 2 * batch),
                               .scale = options_.scale,
                               .out = out.view().reshaped({batch, kv_heads, group, out.dim(3)}),
                               .window = options_.window,
                               .chunk = options_.chunk,
                               .sinks = sinks,
                               .k_scales = scales_of(cache_.k),
                               .v_scales = values_apart() ? scales_of(cache_.v) : first_scales_of(cache_.k),
                               .first_key_part = cache_.k.first_part});
  }
  // Several tokens a slot: one slot after the other, since their numbers of keys differ.
  void attend_some(Context& c, const Tensor& q, const Tensor& positions, const TensorView& sinks,
                   const IndexQueries& index, const Tensor& out) const {
    if (q.view().on_gpu() && latents_are_in_place() && !index.chooses)
      return attend_slots(c, q, positions, sinks, out);
    const Tensor lse = c.empty(DType::f32, {1, q.dim(2), q.dim(1)});
    if (index.is_here()) kept_->bits.assign(static_cast<std::size_t>(q.dim(0)), Tensor());
    const auto row_of = [](const Tensor& x, std::int64_t i) { return x.view().rows(i, i + 1); };
    for (std::int64_t b = 0; b < q.dim(0); ++b) {
      const std::int64_t slot = slots_[static_cast<std::size_t>(b)], keys = length_of(slot);
      if (slot < 0) continue;  // padding
      const auto overflow = std::ranges::find(cache_.overflow, b, &OverflowTokens::batch_row);
      const bool overflows = overflow != cache_.overflow.end();
      const std::int64_t first = first_key(keys - tokens_[static_cast<std::size_t>(b)]),
                         cached_first = overflows ? overflow->first : first_of(slot),
                         there = overflows ? 0 : slot;
      const auto vectors_of = [&](const TokenVectors& x) {
        return SlotVectors(c, x, there, first - cached_first, keys - cached_first, q.dtype());
      };
      const SlotVectors k = vectors_of(overflows ? overflow->k : cache_.k),
                        v = values_apart() ? vectors_of(overflows ? overflow->v : cache_.v)
                                           : SlotVectors(c, k.view, value_width());
      const Tensor kv_index = key_places(c, first, keys);
      Tensor chosen;
      if (index.is_here()) {
        chosen = kept_->bits[static_cast<std::size_t>(b)] =
            c.empty(DType::i32, {1, q.dim(1), words_of_keys(keys)});
        choose_keys(*c.pool, {.scores = scores_of(c, index, b, row_of(positions, b), keys).view(),
                              .count = chosen_count_,
                              .bits = chosen.view()});
      } else if (index.chooses) {
        chosen = kept_->bits.at(static_cast<std::size_t>(b));
      }
      switchyard::attention(*c.pool, {.q = row_of(q, b),
                                      .k = k.view,
                                      .v = v.view,
                                      .q_index = row_of(positions, b),
                                      .kv_index = kv_index.view(),
                                      .scale = options_.scale,
                                      .window = options_.window,
                                      .chunk = options_.chunk,
                                      .chosen = chosen.view(),
                                      .out = row_of(out, b),
                                      .lse = lse.view()});
      if (sinks.defined()) apply_sinks(*c.pool, {sinks, row_of(out, b), lse.view()});
    }
  }
  // Several tokens a slot, all slots at once.
  void attend_slots(Context& c, const Tensor& q, const Tensor& positions, const TensorView& sinks,
                    const Tensor& out) const {
    const std::int64_t batch = q.dim(0);
    const Tensor there = numbers_of(c, numbers_, attended_numbers(cache_, slots_)),
                 lse = c.empty(DType::f32, {batch, q.dim(2), q.dim(1)});
    switchyard::attention(*c.pool, {.q = q.view(),
                                    .k = cache_.k.values.view(),
                                    .v = first_part_of(cache_.k),
                                    .q_index = positions.view(),
                                    .scale = options_.scale,
                                    .window = options_.window,
                                    .chunk = options_.chunk,
                                    .slots = there.view().rows(batch, 2 * batch),
                                    .lengths = there.view().rows(0, batch),
                                    .out = out.view(),
                                    .lse = lse.view()});
    if (sinks.defined()) apply_sinks(*c.pool, {sinks, out.view(), lse.view()});
  }
  // Latents as their dtype is, each slot's from its sequence's first token on.
  bool latents_are_in_place() const {
    return !values_apart() && !cache_.k.scales.defined() && !cache_.window.seen.limits() &&
           cache_.overflow.empty();
  }
  // The first key that the token at `place` and those after it see: the keys before it are not even widened.
  std::int64_t first_key(std::int64_t place) const {
    const KeyWindow seen{options_.window, options_.chunk};
    return std::max<std::int64_t>(0, seen.first_visible(static_cast<std::int32_t>(place)));
  }
  // Places of the keys [begin, end), i32 [1,end-begin]; undefined from 0 on, as attention() knows them then.
  static Tensor key_places(Context& c, std::int64_t begin, std::int64_t end) {
    if (begin == 0) return {};
    std::vector<std::int32_t> places(static_cast<std::size_t>(end - begin));
    std::iota(places.begin(), places.end(), static_cast<std::int32_t>(begin));
    return uploaded(c, places).reshaped({1, end - begin});
  }
  bool values_apart() const { return cache_.v.values.defined(); }
  std::int64_t value_width() const { return values_apart() ? cache_.v.values.dim(3) : cache_.k.first_part; }
  std::int64_t length_of(std::int64_t slot) const {
    return slot < 0 ? 0 : cache_.lengths[static_cast<std::size_t>(slot)];
  }
  std::int64_t first_of(std::int64_t slot) const {
    return slot < 0 ? 0 : cache_.firsts[static_cast<std::size_t>(slot)];
  }

  const LayerCache& cache_;
  std::span<const std::int64_t> slots_, tokens_;
  CallNumbers* numbers_;
  bool drafted_;
  AttentionOptions options_;
  std::int64_t chosen_count_ = 0;
  CachedChoice* kept_ = nullptr;
  float index_factor_ = 1;
};

}  // namespace

Array attend(Context& context, LayerCache& cache, const Array& q, const TokenPlaces& places,
             const AttentionOptions& options, const Array* sinks, const CacheChoice* choice) {
  std::vector<Array> inputs{q, in_slots_of(context, places.positions, q.sharding())};
  if (sinks != nullptr) inputs.push_back(sinks_of_heads(context, *sinks, q));
  if (choice != nullptr && choice->index != nullptr) {
    inputs.push_back(choice->index->q);
    inputs.push_back(choice->index->weights);
  }
  CHECK(!cache.window.seen.limits() ||
            (options.window == cache.window.seen.window && options.chunk == cache.window.seen.chunk),
        "[attention cache] window {} and chunk {}, of a cache for {} and {}", options.window, options.chunk,
        cache.window.seen.window, cache.window.seen.chunk);
  Array attended =
      apply(context, std::make_shared<CacheAttentionOp>(cache, places, options, choice), inputs).front();
  cache.overflow.clear();
  return attended;
}

}  // namespace switchyard

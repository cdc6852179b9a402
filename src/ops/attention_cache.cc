#include "ops/attention_cache.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "kernels/attention/append_tokens.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/attention_sinks.h"
#include "kernels/attention/decode_attention.h"
#include "kernels/attention/index_keys.h"
#include "kernels/attention/int8_vectors.h"
#include "kernels/attention/visible_keys.h"
#include "kernels/moe/ragged_rows.h"
#include "kernels/pointwise/strided_copy.h"
#include "ops/kv_heads.h"
#include "ops/reshard.h"

namespace switchyard {
namespace {

Array with_whole_sequence(Context& context, const Array& x) {
  Sharding to = x.sharding();
  to.dims[1].clear();
  return reshard(context, x, to);
}

Array in_slots_of(Context& context, const Array& places, const Sharding& x) {
  return reshard(context, places, Sharding{{x.dims[0], x.dims[1]}, {}});
}

// This rank's [B,S,heads,D], with the whole sequence.
Tensor heads_for(Context& context, const Array& q, const Array& part) {
  const Array x = with_whole_sequence(context, part);
  if (x.shape().size() == 4) return take_heads(context, x.tensor(), kv_heads_of(context, q.info(), x.info()));
  return x.tensor().reshaped({x.tensor().dim(0), x.tensor().dim(1), 1, x.tensor().dim(2)});
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

// The tokens of a slot from index `at` on.
struct SlotRange {
  const TokenVectors& vectors;
  std::int64_t slot, at;
};
// Copies `tokens` tokens to another slot, or to another index of the same slot.
void copy_tokens(Context& context, const SlotRange& from, const SlotRange& to, std::int64_t tokens) {
  if (tokens == 0) return;
  const auto copy_part = [&](Tensor TokenVectors::*part) {
    const auto view_of = [&](const SlotRange& x) {
      return (x.vectors.*part).view().rows(x.slot, x.slot + 1).slice(1, x.at, tokens);
    };
    if ((from.vectors.*part).defined()) strided_copy(*context.pool, view_of(from), view_of(to));
  };
  copy_part(&TokenVectors::values);
  copy_part(&TokenVectors::scales);
}

// Moves `tokens` tokens of a slot from index `by` to its beginning, in pieces,
// since a copy must not overlap its source.
void move_down(Context& context, const TokenVectors& vectors, std::int64_t slot, std::int64_t by,
               std::int64_t tokens) {
  for (std::int64_t at = 0; by > 0 && at < tokens; at += by)
    copy_tokens(context, {vectors, slot, by + at}, {vectors, slot, at}, std::min(by, tokens - at));
}

// i32 [numbers] on the context's device.
Tensor uploaded(Context& context, const std::vector<std::int32_t>& numbers) {
  const Tensor there = context.empty(DType::i32, {std::ssize(numbers)});
  copy(TensorView::of_host(numbers.data(), there.shape()), there.view());
  return there;
}

// The call's numbers where it keeps them.
Tensor numbers_of(Context& context, CallNumbers* call, std::vector<std::int32_t> numbers) {
  return call != nullptr ? call->of(context, std::move(numbers)) : uploaded(context, numbers);
}

AppendedRow appended(std::int64_t slot, std::int64_t at, std::int64_t tokens) {
  return {static_cast<std::int32_t>(slot), static_cast<std::int32_t>(at), static_cast<std::int32_t>(tokens)};
}

// i32 [rows,3] for a GPU; undefined on the CPU, which reads the rows themselves.
Tensor rows_there(Context& context, CallNumbers* call, std::span<const AppendedRow> rows) {
  if (!context.memory.device().is_gpu() || rows.empty()) return {};
  std::vector<std::int32_t> numbers;
  for (const AppendedRow& row : rows) numbers.insert(numbers.end(), {row.slot, row.at, row.tokens});
  return numbers_of(context, call, std::move(numbers)).reshaped({std::ssize(rows), 3});
}

// The cached keys or values, and the new ones of a call.
struct Store {
  Context& context;
  TokenVectors& cached;
  bool int8;
  std::vector<Tensor> parts;

  Store(Context& context_, AttentionCache& cache, TokenVectors& cached_, const Array& q,
        std::span<const Array> arrays)
      : context(context_), cached(cached_), int8(cache.int8) {
    for (const Array& x : arrays) parts.push_back(heads_for(context, q, x));
  }
  TokenVectors allocated(std::int64_t slots, std::int64_t tokens) const {
    const Shape shape = shape_of(slots, tokens);
    TokenVectors vectors;
    vectors.values = context.empty(int8 ? DType::i8 : parts[0].dtype(), shape);
    const auto scales = static_cast<std::int64_t>(parts.size());
    if (int8) vectors.scales = context.empty(DType::f32, {slots, tokens, shape[2], scales});
    vectors.first_part = parts[0].dim(3);
    return vectors;
  }
  void allocate(std::int64_t slots, std::int64_t tokens) {
    if (!cached.values.defined()) cached = allocated(slots, tokens);
    const Shape shape = shape_of(slots, tokens);
    if (cached.values.shape() != shape) {
      fail_usage(
          "[mesh] logical_axis_rules: a rank's heads are not the same for a prompt and for a token after it "
          "({} "
          "and {}); expected activation_length_attn without axes of activation_heads",
          to_string(cached.values.shape()), to_string(shape));
    }
  }
  // Writes tokens of the call's rows [first, first + rows.size()) of the batch to slots of `to`; `there`: the
  // same numbers for a GPU.
  void append(const TokenVectors& to, std::int64_t first, std::span<const AppendedRow> rows,
              const Tensor& there) const {
    std::int64_t column = 0, number = 0;
    const std::int64_t slots = to.values.dim(0), space = to.values.dim(1), heads = to.values.dim(2);
    for (const Tensor& part : parts) {
      TensorView scales;
      if (int8) {
        const TensorView of_part = to.scales.view().slice(3, number, 1);
        scales = of_part.block(0, {slots, space, heads},
                               {of_part.stride(0), of_part.stride(1), of_part.stride(2)});
      }
      append_tokens(*context.pool, {.x = part.view().rows(first, first + std::ssize(rows)),
                                    .values = to.values.view().slice(3, column, part.dim(3)),
                                    .scales = scales,
                                    .rows = rows,
                                    .rows_there = there.defined() ? there.view() : TensorView()});
      column += part.dim(3);
      ++number;
    }
  }
  // Returns the cached tokens that the call sees with the call's tokens behind them. The slot keeps the last.
  TokenVectors append_overflow(std::int64_t from, std::int64_t tokens, std::int64_t slot, std::int64_t first,
                               std::int64_t length, const CacheWindow::Begins& begins) const {
    const std::int64_t before = length - begins.during;
    TokenVectors all = allocated(1, before + tokens);
    copy_tokens(context, {cached, slot, begins.during - first}, {all, 0, 0}, before);
    const std::vector<AppendedRow> row{appended(0, before, tokens)};
    append(all, from, row, rows_there(context, nullptr, row));
    copy_tokens(context, {all, 0, begins.after - begins.during}, {cached, slot, 0},
                length + tokens - begins.after);
    return all;
  }

 private:
  Shape shape_of(std::int64_t slots, std::int64_t tokens) const {
    std::int64_t width = 0;
    for (const Tensor& part : parts) width += part.dim(3);
    return {slots, tokens, parts[0].dim(2), width};
  }
};

std::int64_t cached_tokens(const AttentionCache& cache, std::int64_t slot) {
  if (slot < 0) return 0;  // padding
  const auto at = static_cast<std::size_t>(slot);
  return cache.lengths[at] - cache.firsts[at];
}

// How many tokens each slot has, then the slots.
std::vector<std::int32_t> attended_numbers(const AttentionCache& cache, std::span<const std::int64_t> slots) {
  std::vector<std::int32_t> numbers;
  for (const std::int64_t slot : slots)
    numbers.push_back(static_cast<std::int32_t>(cached_tokens(cache, slot)));
  for (const std::int64_t slot : slots) numbers.push_back(static_cast<std::int32_t>(slot));
  return numbers;
}

class ThroughInt8Op : public Op {
 public:
  std::string_view name() const override { return "through_int8"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    return {in[0]};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    const Tensor& x = in[0];
    const std::int64_t tokens = x.dim(0) * x.dim(1);
    const Shape vectors{tokens, 1, x.dim(2)};
    const Tensor values = c.empty(DType::i8, vectors), scales = c.empty(DType::f32, {tokens, 1}),
                 out = c.empty(x.dtype(), x.shape());
    to_int8(*c.pool, {x.view().reshaped(vectors), values.view(), scales.view()});
    from_int8(*c.pool, {out.view().reshaped(vectors), values.view(), scales.view()});
    return {out};
  }
  std::vector<Tensor> backward(Context&, const BackwardCall&) const override { return {Tensor()}; }
  bool differentiable() const override { return false; }
};

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
  CacheAttentionOp(const AttentionCache& cache, const TokenPlaces& places, const AttentionOptions& options,
                   const CacheChoice* choice)
      : cache_(cache),
        slots_(places.slots),
        tokens_(places.tokens),
        numbers_(places.numbers),
        options_(options) {
    if (choice != nullptr) chosen_count_ = choice->count, index_factor_ = choice->index->factor;
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
    const bool chooses = in.size() == 4 && std::ranges::any_of(slots_, [&](std::int64_t slot) {
                           return length_of(slot) > chosen_count_;
                         });
    const IndexQueries index{in, chooses};
    if (infos[0].shape[1] > 1)
      attend_some(c, q, in[1], sinks, index, out);
    else if (chooses)
      attend_chosen(c, q, index, out);
    else
      attend_one(c, q, sinks, out);
    return {out};
  }
  std::vector<Tensor> backward(Context&, const BackwardCall& call) const override {
    return std::vector<Tensor>(call.inputs());
  }
  bool differentiable() const override { return false; }

 private:
  // Of an indexer: q [B,S,H,D] and weights [B,S,H].
  struct IndexQueries {
    IndexQueries(std::span<const Tensor> in, bool choose) : chooses(choose) {
      if (choose) q = in[2], weights = in[3];
    }
    bool chooses;
    Tensor q, weights;
  };
  // Scores of row b's queries, at `places` [1,S] i32, for the first `keys` cached keys of its slot:
  // f32 [1,S,keys].
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
  // One token a slot: gathers the keys and values that it chooses and attends to those.
  void attend_chosen(Context& c, const Tensor& q, const IndexQueries& index, const Tensor& out) const {
    const std::int64_t batch = q.dim(0), count = chosen_count_, space = cache_.k.values.dim(1);
    const Tensor ids = c.zeros(DType::i32, {batch, count});
    std::vector<std::int32_t> numbers;  // keys chosen for each row, then rows
    for (std::int64_t b = 0; b < batch; ++b) {
      const std::int64_t slot = slots_[static_cast<std::size_t>(b)], keys = length_of(slot);
      numbers.push_back(static_cast<std::int32_t>(std::min(keys, count)));
      if (slot < 0) continue;  // padding
      const auto last = static_cast<std::int32_t>(keys - 1);
      const Tensor place = c.empty(DType::i32, {1, 1});
      copy(TensorView::of_host(&last, place.shape()), place.view());
      choose_keys(*c.pool, {.scores = scores_of(c, index, b, place.view(), keys).view(),
                            .count = count,
                            .ids = ids.view().rows(b, b + 1),
                            .first_id = static_cast<std::int32_t>(slot * space)});
    }
    for (std::int64_t b = 0; b < batch; ++b) numbers.push_back(static_cast<std::int32_t>(b));
    const Tensor there = numbers_of(c, numbers_, std::move(numbers));
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
  // One token a slot, on all ranks: it is its sequence's last.
  void attend_one(Context& c, const Tensor& q, const TensorView& sinks, const Tensor& out) const {
    const std::int64_t batch = q.dim(0), kv_heads = cache_.k.values.dim(2), group = q.dim(2) / kv_heads;
    const StepLists* const step = numbers_ == nullptr ? nullptr : numbers_->step_lists(cache_.window);
    const Tensor there =
        step != nullptr ? step->attended : numbers_of(c, numbers_, attended_numbers(cache_, slots_));
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
      if (index.chooses) {
        chosen = c.empty(DType::i32, {1, q.dim(1), words_of_keys(keys)});
        choose_keys(*c.pool, {.scores = scores_of(c, index, b, row_of(positions, b), keys).view(),
                              .count = chosen_count_,
                              .bits = chosen.view()});
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

  const AttentionCache& cache_;
  std::span<const std::int64_t> slots_, tokens_;
  CallNumbers* numbers_;
  AttentionOptions options_;
  std::int64_t chosen_count_ = 0;
  float index_factor_ = 1;
};

}  // namespace

Tensor CallNumbers::of(Context& context, std::vector<std::int32_t> numbers) {
  for (const auto& [known, there] : lists_) {
    if (known == numbers) return there;
  }
  return lists_.emplace_back(numbers, uploaded(context, numbers)).second;
}

const StepLists* CallNumbers::step_lists(const CacheWindow& window) const {
  const auto found = std::ranges::find(step, window, &StepLists::window);
  return found == step.end() ? nullptr : &*found;
}

bool can_begin_step(const AttentionCaches& caches) {
  return std::ranges::all_of(caches.layers, [&](const AttentionCache& cache) {
    return cache.k.values.defined() && std::ranges::all_of(caches.slots, [&](std::int64_t slot) {
             if (slot < 0) return true;
             const auto at = static_cast<std::size_t>(slot);
             const CacheWindow::Begins begins = cache.window.begins(cache.firsts[at], cache.lengths[at], 1);
             return begins.in_place() && begins.during == cache.firsts[at];
           });
  });
}

std::vector<std::int32_t> begin_step(AttentionCaches& caches) {
  std::vector<std::int32_t> numbers;
  std::vector<CacheWindow> known;
  for (AttentionCache& cache : caches.layers) {
    const bool is_new = std::ranges::find(known, cache.window) == known.end();
    for (const std::int64_t slot : caches.slots) {
      const auto at = static_cast<std::int32_t>(cached_tokens(cache, slot));
      if (is_new) numbers.insert(numbers.end(), {static_cast<std::int32_t>(slot), at, slot < 0 ? 0 : 1});
      if (slot >= 0) ++cache.lengths[static_cast<std::size_t>(slot)];
    }
    if (!is_new) continue;
    known.push_back(cache.window);
    const std::vector<std::int32_t> attended = attended_numbers(cache, caches.slots);
    numbers.insert(numbers.end(), attended.begin(), attended.end());
  }
  return numbers;
}

std::vector<StepLists> step_lists(const AttentionCaches& caches, const Tensor& numbers) {
  const auto rows = std::ssize(caches.slots);
  std::vector<StepLists> lists;
  std::int64_t at = 0;
  for (const AttentionCache& cache : caches.layers) {
    if (std::ranges::find(lists, cache.window, &StepLists::window) != lists.end()) continue;
    lists.push_back({cache.window, numbers.slice_rows(at, at + 3 * rows).reshaped({rows, 3}),
                     numbers.slice_rows(at + 3 * rows, at + 5 * rows)});
    at += 5 * rows;
  }
  CHECK(at == numbers.size(), "{} numbers of a step, {} are wanted", numbers.size(), at);
  return lists;
}

void cache_append(Context& context, AttentionCache& cache, const Array& q, std::span<const Array> k,
                  std::span<const Array> v, const TokenPlaces& places, const Array* index_key) {
  Store keys(context, cache, cache.k, q, k);
  std::optional<Store> values, index_keys;
  if (!v.empty()) values.emplace(context, cache, cache.v, q, v);
  if (index_key != nullptr) {
    CHECK(!cache.window.seen.limits() && !cache.int8, "[attention cache] an indexer of a window or of int8");
    index_keys.emplace(context, cache, cache.index_keys, q, std::span(index_key, 1));
  }
  const auto slots_here = static_cast<std::int64_t>(cache.lengths.size());
  keys.allocate(slots_here, cache.window.tokens());
  if (values) values->allocate(slots_here, cache.window.tokens());
  if (index_keys) index_keys->allocate(slots_here, cache.window.tokens());
  cache.firsts.resize(cache.lengths.size());
  cache.overflow.clear();
  const std::int64_t batch = keys.parts[0].dim(0);
  CHECK(
      static_cast<std::int64_t>(places.slots.size()) == batch && places.tokens.size() == places.slots.size(),
      "{} slots and {} token counts for a batch of {}", places.slots.size(), places.tokens.size(), batch);
  std::vector<AppendedRow> rows(static_cast<std::size_t>(batch));  // that stay in their slots
  std::vector<Store*> stores{&keys};
  if (values) stores.push_back(&*values);
  if (index_keys) stores.push_back(&*index_keys);
  if (const StepLists* step =
          places.numbers == nullptr ? nullptr : places.numbers->step_lists(cache.window)) {
    for (const Store* store : stores) store->append(store->cached, 0, rows, step->appended);
    return;
  }
  for (std::int64_t b = 0; b < batch; ++b) {
    const std::int64_t slot = places.slots[static_cast<std::size_t>(b)],
                       tokens = places.tokens[static_cast<std::size_t>(b)];
    if (slot < 0) continue;
    std::int64_t &length = cache.lengths[static_cast<std::size_t>(slot)],
                 &first = cache.firsts[static_cast<std::size_t>(slot)];
    CHECK(length + tokens <= cache.window.capacity, "[attention cache] {} tokens after {} of {}", tokens,
          length, cache.window.capacity);
    const CacheWindow::Begins begins = cache.window.begins(first, length, tokens);
    if (begins.in_place()) {
      for (const Store* store : stores)
        move_down(context, store->cached, slot, begins.during - first, length - begins.during);
      rows[static_cast<std::size_t>(b)] = appended(slot, length - begins.during, tokens);
    } else {
      const auto overflow_of = [&](const Store& store) {
        return store.append_overflow(b, tokens, slot, first, length, begins);
      };
      cache.overflow.push_back(
          {b, begins.during, overflow_of(keys), values ? overflow_of(*values) : TokenVectors()});
    }
    length += tokens;
    first = begins.after;
  }
  const Tensor there = rows_there(context, places.numbers, rows);
  for (const Store* store : stores) store->append(store->cached, 0, rows, there);
}

Array cache_round_trip(Context& context, const AttentionCache& cache, const Array& x) {
  return cache.int8 ? apply_one(context, std::make_shared<ThroughInt8Op>(), {x}) : x;
}

void cache_copy_prefix(Context& context, AttentionCache& cache, std::int64_t slot, std::int64_t source_slot,
                       std::int64_t tokens) {
  CHECK(!cache.delta.state.defined() || tokens == 0 ||
            tokens == cache.lengths[static_cast<std::size_t>(source_slot)],
        "[attention cache] {} tokens of {}: a gated delta net copies all or nothing", tokens,
        cache.lengths[static_cast<std::size_t>(source_slot)]);
  cache.firsts.resize(cache.lengths.size());
  const std::int64_t first = tokens == 0 ? 0 : cache.firsts[static_cast<std::size_t>(source_slot)];
  CHECK(cache.window.can_cut(first, tokens), "[attention cache] {} tokens of {}, cached source_slot {} on",
        tokens, cache.lengths[static_cast<std::size_t>(source_slot)], first);
  cache.lengths[static_cast<std::size_t>(slot)] = tokens;
  cache.firsts[static_cast<std::size_t>(slot)] = first;
  if (slot == source_slot || tokens == 0) return;
  const DeltaState& delta = cache.delta;
  for (const Tensor* x : {&delta.query_tail, &delta.key_tail, &delta.value_tail, &delta.state}) {
    if (x->defined())
      strided_copy(*context.pool, x->view().rows(source_slot, source_slot + 1),
                   x->view().rows(slot, slot + 1));
  }
  for (const TokenVectors* x : {&cache.k, &cache.v, &cache.index_keys})
    copy_tokens(context, {*x, source_slot, 0}, {*x, slot, 0}, tokens - first);
}

Array attend(Context& context, AttentionCache& cache, const Array& q, const TokenPlaces& places,
             const AttentionOptions& options, const Array* sinks, const CacheChoice* choice) {
  std::vector<Array> inputs{q, in_slots_of(context, places.positions, q.sharding())};
  if (sinks != nullptr) inputs.push_back(sinks_of_heads(context, *sinks, q));
  if (choice != nullptr) {
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

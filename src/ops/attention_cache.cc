// Appends tokens to attention caches.
#include "ops/attention_cache.h"

#include <algorithm>
#include <optional>

#include "kernels/attention/append_tokens.h"
#include "kernels/attention/int8_vectors.h"
#include "ops/cache_numbers.h"
#include "ops/copy_tokens.h"
#include "ops/kv_heads.h"
#include "ops/reshard.h"

namespace switchyard {
namespace {

Array with_whole_sequence(Context& context, const Array& x) {
  Sharding to = x.sharding();
  to.dims[1].clear();
  return reshard(context, x, to);
}

// This rank's [B,S,heads,D], with the whole sequence.
Tensor heads_for(Context& context, const Array& q, const Array& part) {
  const Array x = with_whole_sequence(context, part);
  if (x.shape().size() == 4) return take_heads(context, x.tensor(), kv_heads_of(context, q.info(), x.info()));
  return x.tensor().reshaped({x.tensor().dim(0), x.tensor().dim(1), 1, x.tensor().dim(2)});
}

// Moves `tokens` tokens of a slot from index `by` to its beginning, in pieces,
// since a copy must not overlap its source.
void move_down(Context& context, const TokenVectors& vectors, std::int64_t slot, std::int64_t by,
               std::int64_t tokens) {
  for (std::int64_t at = 0; by > 0 && at < tokens; at += by)
    copy_tokens(context, {vectors, slot, by + at}, {vectors, slot, at}, std::min(by, tokens - at));
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
struct NewVectors {
  Context& context;
  TokenVectors& cached;
  bool int8;
  std::vector<Tensor> parts;

  NewVectors(Context& context_, LayerCache& cache, TokenVectors& cached_, const Array& q,
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

class ThroughInt8Op : public Op {
 public:
  std::string_view name() const override { return "through_int8"; }
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
  bool differentiable() const override { return false; }
};

}  // namespace

void cache_append(Context& context, LayerCache& cache, const Array& q, std::span<const Array> k,
                  std::span<const Array> v, const TokenPlaces& places, const Array* index_key) {
  NewVectors keys(context, cache, cache.k, q, k);
  std::optional<NewVectors> values, index_keys;
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
  std::vector<NewVectors*> stores{&keys};
  if (values) stores.push_back(&*values);
  if (index_keys) stores.push_back(&*index_keys);
  if (const StepLists* step =
          places.numbers == nullptr ? nullptr : places.numbers->step_lists(cache.window)) {
    for (const NewVectors* store : stores) store->append(store->cached, 0, rows, step->appended);
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
      for (const NewVectors* store : stores)
        move_down(context, store->cached, slot, begins.during - first, length - begins.during);
      rows[static_cast<std::size_t>(b)] = appended(slot, length - begins.during, tokens);
    } else {
      const auto overflow_of = [&](const NewVectors& store) {
        return store.append_overflow(b, tokens, slot, first, length, begins);
      };
      cache.overflow.push_back(
          {b, begins.during, overflow_of(keys), values ? overflow_of(*values) : TokenVectors()});
    }
    length += tokens;
    first = begins.after;
  }
  const Tensor there = rows_there(context, places.numbers, rows);
  for (const NewVectors* store : stores) store->append(store->cached, 0, rows, there);
}

Array cache_round_trip(Context& context, const LayerCache& cache, const Array& x) {
  return cache.int8 ? apply_one(context, std::make_shared<ThroughInt8Op>(), {x}) : x;
}

}  // namespace switchyard

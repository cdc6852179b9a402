// Copies and cuts slots, and takes tokens back out of states.
#include "ops/layer_cache.h"

#include "kernels/pointwise/strided_copy.h"
#include "ops/copy_tokens.h"

namespace switchyard {
namespace {

// Makes the state of a slot of `length` tokens that of its first `tokens` tokens.
void take_back(Context& context, StateStore& store, std::int64_t slot, std::int64_t length,
               std::int64_t tokens) {
  const auto found = store.calls.find(slot);
  CHECK(found != store.calls.end() && tokens < length && tokens > length - found->second.tokens,
        "[cache] {} tokens of {} in slot {}: its last call was not of drafts, or shorter", tokens, length,
        slot);
  const StateStore::Call& call = found->second;
  const TensorView state = store.values.view().rows(slot, slot + 1);
  strided_copy(*context.pool, call.before.view(), state);
  call.repeat(context, state, tokens - (length - call.tokens));
  store.calls.erase(found);
}

}  // namespace

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

void cache_copy_prefix(Context& context, LayerCache& cache, std::int64_t slot, std::int64_t source_slot,
                       std::int64_t tokens) {
  if (cache.is_empty()) return;
  cache.firsts.resize(cache.lengths.size());
  const std::int64_t before = cache.lengths[static_cast<std::size_t>(source_slot)],
                     first = tokens == 0 ? 0 : cache.firsts[static_cast<std::size_t>(source_slot)];
  const bool cuts = tokens != 0 && tokens != before, copies = slot != source_slot && tokens != 0;
  CHECK(slot == source_slot || cache.states.empty() || !cuts,
        "[cache] {} tokens of {}: a state is copied whole or not at all", tokens, before);
  CHECK(tokens <= before && (!cache.states.empty() || cache.window.can_cut(first, before, tokens)),
        "[cache] {} tokens of {}, cached from {} on", tokens, before, first);
  for (StateStore& store : cache.states) {
    if (cuts) take_back(context, store, slot, before, tokens);
    store.calls.erase(slot);
    if (copies && store.values.defined())
      strided_copy(*context.pool, store.values.view().rows(source_slot, source_slot + 1),
                   store.values.view().rows(slot, slot + 1));
  }
  cache.lengths[static_cast<std::size_t>(slot)] = tokens;
  cache.firsts[static_cast<std::size_t>(slot)] = first;
  if (!copies) return;
  for (const TokenVectors* x : {&cache.k, &cache.v, &cache.index_keys})
    copy_tokens(context, {*x, source_slot, 0}, {*x, slot, 0}, tokens - first);
}

StateOfCall begin_call(Context& context, LayerCache& cache, std::size_t state, std::int64_t slot,
                       std::int64_t tokens, bool drafted) {
  StateStore& store = cache.states[state];
  const TensorView view = store.values.view().rows(slot, slot + 1);
  if (cache.lengths[static_cast<std::size_t>(slot)] == 0)
    strided_copy(*context.pool, context.zeros(store.values.dtype(), view.shape()).view(), view);
  if (!drafted || tokens == 1) {
    store.calls.erase(slot);
    return {view};
  }
  StateStore::Call& call = store.calls[slot];
  call = {context.empty(store.values.dtype(), view.shape()), tokens, nullptr};
  strided_copy(*context.pool, view, call.before.view());
  return {view, &call};
}

void count_tokens(LayerCache& cache, const TokenPlaces& places) {
  SlotsOfCall(places).for_each(
      std::ssize(places.slots), [&](std::int64_t, std::int64_t slot, std::int64_t tokens) {
        std::int64_t& length = cache.lengths[static_cast<std::size_t>(slot)];
        CHECK(length + tokens <= cache.window.capacity, "[cache] {} tokens after {} of {}", tokens, length,
              cache.window.capacity);
        length += tokens;
      });
}

}  // namespace switchyard

#include "ops/cache_numbers.h"

#include <algorithm>

namespace switchyard {

Tensor uploaded(Context& context, const std::vector<std::int32_t>& numbers) {
  const Tensor there = context.empty(DType::i32, {std::ssize(numbers)});
  copy(TensorView::of_host(numbers.data(), there.shape()), there.view());
  return there;
}

Tensor numbers_of(Context& context, CallNumbers* call, std::vector<std::int32_t> numbers) {
  return call != nullptr ? call->of(context, std::move(numbers)) : uploaded(context, numbers);
}

std::int64_t cached_tokens(const LayerCache& cache, std::int64_t slot) {
  if (slot < 0) return 0;  // padding
  const auto at = static_cast<std::size_t>(slot);
  return cache.lengths[at] - cache.firsts[at];
}

std::vector<std::int32_t> attended_numbers(const LayerCache& cache, std::span<const std::int64_t> slots,
                                           std::span<const std::int64_t> tokens, std::int64_t space) {
  std::vector<std::int32_t> numbers;
  for (std::size_t b = 0; b < slots.size(); ++b) {
    const std::int64_t before = cached_tokens(cache, slots[b]) - tokens[b];
    for (std::int64_t i = 0; i < space; ++i)
      numbers.push_back(i < tokens[b] ? static_cast<std::int32_t>(before + i + 1) : 0);
  }
  for (const std::int64_t slot : slots)
    numbers.insert(numbers.end(), static_cast<std::size_t>(space), static_cast<std::int32_t>(slot));
  return numbers;
}

std::vector<std::int32_t> attended_numbers(const LayerCache& cache, std::span<const std::int64_t> slots) {
  std::vector<std::int64_t> tokens;
  for (const std::int64_t slot : slots) tokens.push_back(slot < 0 ? 0 : 1);
  return attended_numbers(cache, slots, tokens, 1);
}

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

bool can_begin_step(const LayerCaches& caches) {
  return std::ranges::all_of(caches.layers, [&](const LayerCache& cache) {
    return cache.k.values.defined() && std::ranges::all_of(caches.slots, [&](std::int64_t slot) {
             if (slot < 0) return true;
             const auto at = static_cast<std::size_t>(slot);
             const CacheWindow::Begins begins = cache.window.begins(cache.firsts[at], cache.lengths[at], 1);
             return begins.in_place() && begins.during == cache.firsts[at];
           });
  });
}

std::vector<std::int32_t> begin_step(LayerCaches& caches) {
  std::vector<std::int32_t> numbers;
  std::vector<CacheWindow> known;
  for (LayerCache& cache : caches.layers) {
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

std::vector<StepLists> step_lists(const LayerCaches& caches, const Tensor& numbers) {
  const auto rows = std::ssize(caches.slots);
  std::vector<StepLists> lists;
  std::int64_t at = 0;
  for (const LayerCache& cache : caches.layers) {
    if (std::ranges::find(lists, cache.window, &StepLists::window) != lists.end()) continue;
    lists.push_back({cache.window, numbers.slice_rows(at, at + 3 * rows).reshaped({rows, 3}),
                     numbers.slice_rows(at + 3 * rows, at + 5 * rows)});
    at += 5 * rows;
  }
  CHECK(at == numbers.size(), "{} numbers of a step, {} are wanted", numbers.size(), at);
  return lists;
}

}  // namespace switchyard

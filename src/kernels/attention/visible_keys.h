// The first key that a query sees under causal attention with a sliding window, chunks, or both.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

namespace switchyard {

// Windows and chunks of keys, by places in the sequence; 0: none.
struct KeyWindow {
  std::int64_t window = 0;  // keys that a query sees, its own among them
  std::int64_t chunk = 0;   // places of a chunk; queries see keys of their own only

  bool operator==(const KeyWindow&) const = default;
  bool limits() const { return window > 0 || chunk > 0; }

  // The first place whose key a query at `place` may see. It never goes back as `place` goes on.
  constexpr std::int32_t first_visible(std::int32_t place) const {
    constexpr std::int64_t kLow = std::numeric_limits<std::int32_t>::min();
    std::int64_t first = kLow;
    if (window > 0) first = std::max(first, place - window + 1);
    if (chunk > 0) first = std::max(first, place - (place % chunk + chunk) % chunk);
    return static_cast<std::int32_t>(first);
  }

  // The place after the last whose query sees the key at `place`.
  constexpr std::int64_t end_of_seers(std::int32_t place) const {
    std::int64_t end = std::numeric_limits<std::int64_t>::max();
    if (window > 0) end = std::min(end, place + window);
    if (chunk > 0) end = std::min(end, place - (place % chunk + chunk) % chunk + chunk);
    return end;
  }

  // Pairs of query and key of a causal sequence of `length`.
  double pairs(std::int64_t length) const {
    const std::int64_t part = chunk > 0 ? std::min(chunk, length) : length;
    const auto within = [&](std::int64_t tokens) {
      const std::int64_t growing = window > 0 ? std::min(window, tokens) : tokens;
      return static_cast<double>(growing) * static_cast<double>(growing + 1) / 2 +
             static_cast<double>(tokens - growing) * static_cast<double>(growing);
    };
    return part == 0 ? 0 : static_cast<double>(length / part) * within(part) + within(length % part);
  }
};

}  // namespace switchyard

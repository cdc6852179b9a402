// CacheWindow: what a slot of a layer's cache keeps of a sequence. A layer with a window or with chunks keeps
// the tokens that later tokens may see; a scan keeps one state, which all tokens made; any other
// layer keeps all tokens.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/attention/visible_keys.h"

namespace switchyard {

// A slot keeps the tokens from position `first` to its length. All ranks know the numbers that decide, so the
// functions return the same on each rank.
struct CacheWindow {
  std::int64_t capacity = 0;  // most tokens of a sequence, evicted ones included
  KeyWindow seen = {};        // the earlier tokens that a token sees
  // A call may drop so many of a sequence's last tokens (rejected drafts). For that, a slot appends one token
  // more in place.
  std::int64_t taken_back = 1;
  bool whole = false;  // a state: it does not tell what it was before its last tokens

  bool operator==(const CacheWindow&) const = default;

  // The number of tokens that a slot has memory for. It has a quarter more than a window, so that the window
  // is moved down only once per that many tokens. Chunks are evicted whole, without moving memory.
  std::int64_t tokens() const {
    if (!seen.limits()) return capacity;
    const std::int64_t widest = seen.chunk > 0 ? seen.chunk : seen.window,
                       spare = std::max(1 + taken_back, seen.chunk > 0 ? 0 : seen.window / 4);
    return std::min(capacity, widest - 1 + taken_back + spare);
  }

  // The first cached position while a call attends, and after it.
  struct Begins {
    std::int64_t during, after;
    bool in_place() const { return during == after; }  // else some of the call's tokens are evicted at once
  };
  // For a slot of `length` tokens, cached from `first` on, when a call appends `added` tokens.
  Begins begins(std::int64_t first, std::int64_t length, std::int64_t added) const {
    if (length + added - first <= tokens()) return {first, first};
    const std::int64_t during = std::max(first, first_needed(length));
    return {during, length + added - during <= tokens() ? during : first_needed(length + added)};
  }

  // True if a slot can continue after any part of its tokens.
  bool cuts_freely() const { return !whole && !seen.limits(); }
  // True if a slot of `length` tokens, cached from `first` on, can continue after its first `tokens` tokens.
  bool can_cut(std::int64_t first, std::int64_t length, std::int64_t tokens) const {
    if (tokens == 0 || whole) return tokens == 0 || tokens == length;
    return first_seen(tokens) >= first;
  }

 private:
  std::int64_t first_seen(std::int64_t position) const {
    return std::max<std::int64_t>(0, seen.first_visible(static_cast<std::int32_t>(position)));
  }
  // Rounded down to a chunk's beginning, so that positions counted from there fall into the same chunks.
  std::int64_t first_needed(std::int64_t length) const {
    const std::int64_t first = first_seen(std::max<std::int64_t>(0, length - taken_back));
    return seen.chunk > 0 ? first - first % seen.chunk : first;
  }
};

}  // namespace switchyard

// Which of a row's tokens an attention cache remembers: all, or of a layer with a window or with chunks those
// that tokens to come may see.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/attention/visible_keys.h"

namespace switchyard {

// A row's remembered tokens begin at `first`, a place in the sequence, and go on to the row's length. What
// the functions say follows from numbers that all ranks know, and so is the same on all of them.
struct TokenRoom {
  // Of a row's last tokens: the next call may go on without them. It takes two tokens of a row in place,
  // then.
  static constexpr std::int64_t kTakenBack = 1;

  std::int64_t capacity = 0;  // most tokens of a row, remembered or not
  KeyWindow seen = {};        // what a token sees of those before it

  // Tokens of a row that there is memory for. Beyond the window there is room for a quarter of it, so that
  // the window is moved down once in so many tokens; whole chunks go, and leave nothing to move.
  std::int64_t tokens() const {
    if (!seen.limits()) return capacity;
    const std::int64_t widest = seen.chunk > 0 ? seen.chunk : seen.window,
                       spare = std::max(1 + kTakenBack, seen.chunk > 0 ? 0 : seen.window / 4);
    return std::min(capacity, widest - 1 + kTakenBack + spare);
  }

  // Where the remembered tokens begin while a call's tokens are attended to, and after it.
  struct Begins {
    std::int64_t during, after;
    bool in_place() const { return during == after; }  // else the call's tokens do not all come to stay
  };
  // Of a row of `length` tokens, remembered from `first` on, to which a call adds some.
  Begins begins(std::int64_t first, std::int64_t length, std::int64_t added) const {
    if (length + added - first <= tokens()) return {first, first};
    const std::int64_t during = std::max(first, first_needed(length));
    return {during, length + added - during <= tokens() ? during : first_needed(length + added)};
  }

  // Whether a row that is remembered from `first` on can go on after its first `length` tokens.
  bool can_cut(std::int64_t first, std::int64_t length) const {
    return length == 0 || first_seen(length) >= first;
  }

 private:
  std::int64_t first_seen(std::int64_t place) const {
    return std::max<std::int64_t>(0, seen.first_visible(static_cast<std::int32_t>(place)));
  }
  // At the beginning of a chunk, so that places counted from there are in the same chunks.
  std::int64_t first_needed(std::int64_t length) const {
    const std::int64_t first = first_seen(std::max<std::int64_t>(0, length - kTakenBack));
    return seen.chunk > 0 ? first - first % seen.chunk : first;
  }
};

}  // namespace switchyard

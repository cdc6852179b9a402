// Windows: how a text longer than what a model reads at once is cut into parts, and which of its tokens each
// part is scored on.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/dataset.h"

namespace switchyard {

// Tokens [begin, begin + length) of the text. After token begin + i the model says what it expects as token
// begin + i + 1; that one is scored for i in [first_scored, length).
struct Window {
  std::int64_t begin = 0, length = 0, first_scored = 0;
  bool operator==(const Window&) const = default;
};

// Windows of `window` tokens, each `stride` further than the one before, 1 <= stride <= window; the last may
// be shorter. Every token but the first, before which there is nothing, is scored exactly once: with at least
// window - stride + 1 tokens before it, or with all that the text has. Empty for a text of less than two.
std::vector<Window> windows_of(std::int64_t tokens, std::int64_t window, std::int64_t stride);

// Windows of the text as rows of `length` tokens, [rows, length], positions beginning at 0 in each. What a
// window or a missing row leaves is padding (segment 0). Nothing is a target.
Batch batch_of_windows(std::span<const std::int32_t> tokens, std::span<const Window> windows,
                       std::int64_t rows, std::int64_t length);

}  // namespace switchyard

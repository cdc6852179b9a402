// Windows: the parts into which a text longer than a model's
// context is cut, and the tokens that are scored in each part.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/dataset.h"

namespace switchyard {

// Tokens [begin, begin + length) of the text. The logits after token begin + i predict token begin + i + 1,
// which is scored for i in [first_scored, length).
struct Window {
  std::int64_t begin = 0, length = 0, first_scored = 0;
  bool operator==(const Window&) const = default;
};

// Windows of `window` tokens, each starting `stride` after the one before, 1 <= stride <= window; the last
// may be shorter. Every token except the first, which nothing predicts, is scored exactly once: after at
// least window - stride + 1 tokens, or after all that the text has. Empty for fewer than two tokens.
std::vector<Window> windows_of(std::int64_t tokens, std::int64_t window, std::int64_t stride);

// Windows of the text as rows of `length` tokens, [rows, length]. Positions begin at 0 in each row. Unused
// places and missing rows are padding (segment 0). No token is a target.
Batch batch_of_windows(std::span<const std::int32_t> tokens, std::span<const Window> windows,
                       std::int64_t rows, std::int64_t length);

}  // namespace switchyard

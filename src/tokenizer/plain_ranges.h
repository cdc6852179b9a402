// Plain ranges: the parts of a text in which no added token is looked for. Ranges are in order and apart.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/text_range.h"

namespace switchyard {

// Returns whether the bytes [begin, end) have one of a range.
bool touches(std::span<const TextRange> ranges, std::size_t begin, std::size_t end);

// Returns what the ranges have of the part [begin, end), counted from its beginning.
std::vector<TextRange> ranges_within(std::span<const TextRange> ranges, std::size_t begin, std::size_t end);

// Returns the places in valid_utf8(text) of ranges of `text`, each widened to whole characters.
std::vector<TextRange> ranges_in_valid(std::string_view text, std::span<const TextRange> ranges);

// Returns the places in `normal`, which is normalize(text), of ranges of `text`; none where `normalize` works
// across an end of a range, so that no place is right.
std::optional<std::vector<TextRange>> ranges_in_normal(
    const std::string& text, std::span<const TextRange> ranges, const std::string& normal,
    const std::function<std::string(std::string)>& normalize);

}  // namespace switchyard

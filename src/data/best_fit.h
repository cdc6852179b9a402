// Rows of whole documents.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace switchyard {

// Puts documents of these lengths, each at most `room`, into rows of `room` places by best fit decreasing:
// the longest document first, of equal ones the first; into the row with the least room that is enough, of
// rows with as much the one that has had it longest. A row takes at most `most` documents; -1: any number.
// Returns the documents of each row, in the order in which they came to it.
std::vector<std::vector<std::int64_t>> best_fit(std::span<const std::int64_t> lengths, std::int64_t room,
                                                std::int64_t most = -1);

}  // namespace switchyard

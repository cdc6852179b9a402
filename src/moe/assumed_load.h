// Assumes how many rows each expert gets when there is no data to say so (abstract contexts).
#pragma once

#include <cstdint>
#include <vector>

#include "autograd/context.h"

namespace switchyard {

// Rows per expert of `tokens` tokens with `slots` choices each: even, but the
// experts [first, first + count) get context.assumed->imbalance times their
// fair share, at most one row for each token and expert. Totals are exact.
std::vector<std::int64_t> assumed_rows(const Context& context, std::int64_t tokens, std::int64_t slots,
                                       std::int64_t experts, std::int64_t first, std::int64_t count);

// Divides `rows` into `groups` groups as evenly as possible.
std::vector<std::int64_t> even_groups(std::int64_t rows, std::int64_t groups);

}  // namespace switchyard

// Causal attention over a split sequence, balanced: late queries see more keys than early ones, so with
// contiguous parts the last of P ranks works 2P-1 times as long as the first. Cut into 2P chunks, with chunks
// r and 2P-1-r on rank r, all ranks work alike.
#pragma once

#include "autograd/op.h"

namespace switchyard {

// Whether dim 1 of x is split over several ranks and the split can be balanced: it divides into 2P chunks.
bool can_balance_sequence(const Context& context, const Array& x);

// x [B,S,...], its sequence in contiguous parts -> the same shape and sharding, this rank's part being chunks
// r and 2P-1-r; and back. Any dtype.
Array balance_sequence(Context& context, const Array& x);
Array unbalance_sequence(Context& context, const Array& x);

// Place in its sequence of the first token of each half of this rank's balanced part; `x` is the balanced
// array.
std::pair<std::int64_t, std::int64_t> balanced_halves(const Context& context, const ArrayInfo& x);

}  // namespace switchyard

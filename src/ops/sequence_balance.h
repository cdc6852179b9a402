// Balances causal attention over a split sequence: late queries see more keys than early ones, so with
// contiguous parts the last of P ranks works 2P-1 times as long as the first. With the sequence cut into 2P
// chunks, and chunks r and 2P-1-r on rank r, all ranks work equally.
#pragma once

#include "autograd/op.h"

namespace switchyard {

// True when dim 1 of x is split over several ranks and can be balanced: 2P chunks divide it.
bool can_balance_sequence(const Context& context, const Array& x);

// Rearranges x [B,S,...] from contiguous parts so that this rank's part is chunks r and 2P-1-r, with the same
// shape and sharding; and back. Any dtype.
Array balance_sequence(Context& context, const Array& x);
Array unbalance_sequence(Context& context, const Array& x);

// Position in the sequence of the first token of each half of this rank's balanced part;
// `x` is the balanced array.
std::pair<std::int64_t, std::int64_t> balanced_halves(const Context& context, const ArrayInfo& x);

}  // namespace switchyard

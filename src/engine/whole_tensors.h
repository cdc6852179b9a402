// Whole tensors of a caller, and the blocks of them that ranks hold.
#pragma once

#include "autograd/array.h"
#include "autograd/context.h"

namespace switchyard {

// This rank's block of a whole tensor, which it shares where its rows lie together there.
Tensor block_of(const Context& context, const Tensor& whole, const Sharding& sharding);

// This rank's part of a whole cotangent for a value in `sharding`: its block on the first of the ranks that
// hold the same values, zeros on the others (invariant 2 of autograd/array.h).
Tensor cotangent_block(const Context& context, const Tensor& whole, const Sharding& sharding);

// Collective. Returns the tensor of which `block` is this rank's part, in the host's memory. Partial sums are
// added. Ranks of one process write to `whole`; a single rank gets its own block back, unless others hold the
// block's memory, too.
Tensor whole_of(Context& context, Tensor block, const Shape& shape, Sharding sharding, const Tensor& whole);

}  // namespace switchyard

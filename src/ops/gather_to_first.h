// Gathers an array to one rank only; reshard() would send it to all ranks.
#pragma once

#include <string_view>

#include "autograd/op.h"

namespace switchyard {

// Returns x whole in the host's memory on the first rank of the mesh (rank 0 of a stage), and an undefined
// tensor on all others. A rank whose shard another rank also holds sends nothing. Counts as a host read of
// `what` on the first rank. x must not have partial sums (CHECK). Collective in the mesh.
Tensor gather_to_first(Context& context, const Array& x, std::string_view what);

// Returns the same in the first rank's device memory. Shares x's buffer where that rank has all of x. Counts
// no host read.
Tensor gather_to_first_device(Context& context, const Array& x);

}  // namespace switchyard

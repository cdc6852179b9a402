// Gathers an array on one rank alone, where reshard() would give it to all.
#pragma once

#include <string_view>

#include "autograd/op.h"

namespace switchyard {

// Returns x whole in the host's memory on the first rank of the mesh (rank 0 of a stage), and an undefined
// tensor on all others. Ranks whose shard another rank holds too send nothing. Counts as a host read of
// `what` on the first rank. x must not have partial sums (CHECK). Collective in the mesh.
Tensor gather_to_first(Context& context, const Array& x, std::string_view what);

}  // namespace switchyard

// Silent corruption: weights of which processes hold copies of their own are compared by digest.
#pragma once

#include <cstdint>

#include "autograd/context.h"
#include "models/parameters.h"

namespace switchyard {

// Whether any weight lies in the memory of several processes; alike on the ranks of a run.
bool has_replicas(const Context& context, const Parameters& parameters);

// Compares XXH3 digests of every weight among the processes that hold a copy; each of them hashes a copy
// once. Collective, after `step`. Error(runtime), on all ranks that hold the weight, names it, the step and
// the ranks whose copy differs from that of the most.
void compare_replicas(Context& context, const Parameters& parameters, std::int64_t step);

}  // namespace switchyard

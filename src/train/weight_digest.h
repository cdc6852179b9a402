// Finds silent corruption: compares digests of weights of which several processes hold copies.
#pragma once

#include <cstdint>

#include "autograd/context.h"
#include "models/parameters.h"

namespace switchyard {

// True when some weight is in the memory of several processes; the same on all ranks of a run.
bool has_replicas(const Context& context, const Parameters& parameters);

// Compares XXH3 digests of every weight among the processes with a copy; each process hashes a copy once.
// Collective, after `step`. Error(runtime), on all ranks that hold the weight, names the weight, the step and
// the ranks whose copy differs from the majority's.
void compare_replicas(Context& context, const Parameters& parameters, std::int64_t step);

}  // namespace switchyard

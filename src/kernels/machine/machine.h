// What this machine is, as the system tells it. Unknown sizes are 0.
#pragma once

#include <cstdint>
#include <string>

namespace switchyard {

std::string machine_name();  // "Intel(R) Xeon(R) Processor (amx)": processor and active_isa()
// False in a build that has AMX's costs without its numbers (kernels/cpu/tile_costs.h): it can only be timed.
bool has_true_numbers();
std::int64_t last_level_cache_bytes();
std::int64_t available_memory_bytes();  // without pushing anything out, within the limits of control groups

}  // namespace switchyard

// Describes this machine as the system reports it. Unknown sizes are 0.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/address_limit.h"

namespace switchyard {

std::string machine_name();  // "Intel(R) Xeon(R) Processor (amx)": processor and active_isa()
// False in a build that has AMX's costs without its numbers (kernels/cpu/tile_costs.h): it can only be timed.
bool has_true_numbers();
std::int64_t last_level_cache_bytes();

// The memory that this process may still take.
struct AvailableMemory {
  std::int64_t bytes = 0;              // of the machine and its control groups, without pushing anything out
  std::optional<AddressLimit> limit;  // of addresses, with what tensors' memory has reserved and not used
};
// Nothing where the system does not tell. Error(runtime) as for address_limit().
std::optional<AvailableMemory> available_memory();
// The smallest of these bytes; 0 where the system does not tell.
std::int64_t available_memory_bytes();

}  // namespace switchyard

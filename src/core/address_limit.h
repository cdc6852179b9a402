// The limits of this process's address space that batch systems and shells set: RLIMIT_AS (ulimit -v) and
// RLIMIT_DATA (ulimit -d).
#pragma once

#include <cstdint>
#include <optional>

namespace switchyard {

struct AddressLimit {
  std::int64_t left;  // bytes that may still be mapped
  const char* name;   // for people: "the limit of address space (ulimit -v)"
};

// The tighter of the two; empty where the process has neither. Error(runtime) where there is one and the
// system does not tell how much of it is used.
std::optional<AddressLimit> address_limit();

// The bytes of addresses that threads and ranks of a run take for their stacks: `cores` threads with loops,
// a few others, and a stack for each of several `ranks`.
std::int64_t bytes_of_stacks(int cores, std::int64_t ranks);

}  // namespace switchyard

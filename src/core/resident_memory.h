// The peak resident memory of the process, as the system counts it.
#pragma once

#include <cstdint>

namespace switchyard {

void reset_peak_resident();          // sets the peak to the current resident memory; no effect if unsupported
std::int64_t peak_resident_bytes();  // 0 where unknown

}  // namespace switchyard

// Most memory that the process had at once, as the system counts it.
#pragma once

#include <cstdint>

namespace switchyard {

void reset_peak_resident();          // the peak is what is resident now; without effect where unsupported
std::int64_t peak_resident_bytes();  // 0 where unknown

}  // namespace switchyard

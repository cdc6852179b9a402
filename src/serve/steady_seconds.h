// The clock of requests' times.
#pragma once

#include <chrono>

namespace switchyard::serve {

inline double steady_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace switchyard::serve

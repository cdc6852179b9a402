// The clock of requests' times: one in which the server does not run is not there.
#pragma once

#include "core/running_clock.h"

namespace switchyard::texts {

inline double steady_seconds() {
  return RunningClock::seconds();
}

}  // namespace switchyard::texts

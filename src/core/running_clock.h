// RunningClock: a clock for limits of time, which stands still while this process does not run.
//
// A batch system's suspension (SIGSTOP), a paused container, a debugger or a frozen machine stops a process
// for any time, and then nothing that it waits for is late. A thread of the clock ticks; of a gap between two
// ticks at most kMostGap counts. So what waits for a deadline needs no slices of its own: where the steady
// clock says that it is over, it asks this clock, and waits on for what is left.
#pragma once

#include <chrono>

namespace switchyard {

struct RunningClock {
  using duration = std::chrono::nanoseconds;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<RunningClock, duration>;
  static constexpr bool is_steady = true;

  // What a gap between two ticks counts at most.
  static constexpr std::chrono::milliseconds kMostGap{200};

  static time_point now() noexcept;
  // In seconds of a double.
  static double seconds() { return std::chrono::duration<double>(now().time_since_epoch()).count(); }
  static duration duration_of(double seconds) {
    return std::chrono::duration_cast<duration>(std::chrono::duration<double>(seconds));
  }
  // When the steady clock will be there if the process runs until then.
  static std::chrono::steady_clock::time_point steady(time_point at) {
    return std::chrono::steady_clock::now() + (at - now());
  }
};

}  // namespace switchyard

// RunningClock: a clock for limits of time, which stands still while this process does not run.
//
// A batch system's suspension (SIGSTOP), a paused container, a debugger or a frozen machine stops a process
// for any time, and then nothing that it waits for is late. A thread of the clock ticks; of a gap between two
// ticks at most kMostGap counts. So a waiting thread needs no slices of its own: when the steady clock has
// passed the deadline, the thread asks RunningClock and waits on for the rest.
#pragma once

#include <chrono>

namespace switchyard {

struct RunningClock {
  using duration = std::chrono::nanoseconds;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::time_point<RunningClock, duration>;
  static constexpr bool is_steady = true;

  // The most that a gap between two ticks counts.
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

#include "core/running_clock.h"

#include <algorithm>
#include <mutex>
#include <system_error>
#include <thread>

namespace switchyard {
namespace {

using Steady = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kTick{100};

class Ticks {
 public:
  Ticks() {
    // Without a thread, which a limit of processes or memory may refuse, callers tick: a gap is then what
    // lies between two of their looks, and limits come later than they should, never too early.
    try {
      std::thread([this] {
        for (;;) {
          std::this_thread::sleep_for(kTick);
          now();
        }
      }).detach();
    } catch (const std::system_error&) {
    }
  }

  RunningClock::duration now() {
    const std::scoped_lock lock(mutex_);
    const Steady::time_point steady = Steady::now();
    ran_ += std::min<RunningClock::duration>(steady - last_, RunningClock::kMostGap);
    last_ = steady;
    return ran_;
  }

 private:
  std::mutex mutex_;
  Steady::time_point last_ = Steady::now();
  RunningClock::duration ran_{0};
};

}  // namespace

RunningClock::time_point RunningClock::now() noexcept {
  static Ticks* const ticks = new Ticks;  // never destroyed: its thread ends with the process
  return time_point(ticks->now());
}

}  // namespace switchyard

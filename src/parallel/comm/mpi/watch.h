// Watch: a thread that detects at once when another process of this machine ends, and receives SIGTERM.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "core/running_clock.h"

namespace switchyard {

// Blocks SIGTERM for the calling thread and its later child threads, so that the watch receives it.
void leave_sigterm_to_watch();

class Watch {
 public:
  // Callbacks, run on the watch's thread.
  struct Events {
    std::function<void(int process)> died;
    // SIGTERM arrived, and no watched process died shortly before or after. Returns false when the signal
    // should end the process.
    std::function<bool()> terminated;
    std::function<void()> overdue;  // finish() was called and its time has passed
  };

  // `pids[p]`: process p of the run, -1 for this process and for those of other machines. On systems that
  // cannot watch processes (before Linux 5.3) deaths are not detected.
  Watch(const std::vector<pid_t>& pids, Events events);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // From now on other processes may end, and this process must end within `seconds`.
  void finish(double seconds);

 private:
  using Clock = RunningClock;
  void run();
  void handle_death(std::size_t index);
  void end_by_sigterm();

  Events events_;
  std::vector<int> processes_, handles_;  // of the watched processes
  int signals_ = -1, stop_ = -1;          // file descriptors
  std::atomic<Clock::rep> finish_by_{0};  // 0: not finishing
  Clock::time_point terminate_at_ = Clock::time_point::max();
  std::thread thread_;
};

}  // namespace switchyard

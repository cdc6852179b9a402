// Watch: a thread that notices at once when another process of this machine ends, and that receives SIGTERM.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

namespace switchyard {

// Blocks SIGTERM for the calling thread and all that it starts, so that the watch gets it.
void leave_sigterm_to_watch();

class Watch {
 public:
  // What happens in the watch's thread.
  struct Events {
    std::function<void(int process)> died;
    // SIGTERM came, and nobody was seen to die shortly before or after. Returns false where the signal should
    // end the process.
    std::function<bool()> terminated;
    std::function<void()> overdue;  // finish() was called and its time is over
  };

  // `pids[p]`: process p of the run, -1 for this one and those of other machines. Where the system cannot
  // watch processes (before Linux 5.3) deaths go unnoticed here.
  Watch(const std::vector<pid_t>& pids, Events events);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  // From now on processes may end, and this one has `seconds` to do so.
  void finish(double seconds);

 private:
  using Clock = std::chrono::steady_clock;
  void run();
  void handle_death(std::size_t index);
  void end_by_sigterm();

  Events events_;
  std::vector<int> processes_, handles_;  // of the watched
  int signals_ = -1, stop_ = -1;          // file descriptors
  std::atomic<Clock::rep> finish_by_{0};  // 0: not finishing
  Clock::time_point terminate_at_ = Clock::time_point::max();
  std::thread thread_;
};

}  // namespace switchyard

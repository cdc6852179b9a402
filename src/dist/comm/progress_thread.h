// ProgressThread: carries out one rank's started collectives, one after the other, on a channel of its own.
#pragma once

#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/workers.h"
#include "dist/comm/communicator.h"

namespace switchyard {

struct StartedCollective {
  StartedCollective(const Group& members, std::string_view axes, std::vector<std::shared_ptr<void>> memory)
      : group(members), axis(axes), buffers(std::move(memory)) {}
  const Group group;
  const std::string axis;
  CollectiveCall call;     // its axis is the one above
  std::int64_t bytes = 0;  // to others
  // Carries it out and returns the seconds waited for others.
  std::function<double(Communicator&, const StartedCollective&)> work;
  std::vector<std::shared_ptr<void>> buffers;  // kept alive until it is done
  std::int64_t step = -1, layer = -1;          // where it was started
  const char* phase = "start";
  double start = 0;  // of do_start
  bool done = false;
  std::exception_ptr error;
};

class ProgressThread {
 public:
  explicit ProgressThread(std::unique_ptr<Communicator> channel);
  // Waits for what is running, which must be able to end: done, or failed as another rank's end makes it.
  // What has not begun is dropped.
  ~ProgressThread();
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

  void start(std::shared_ptr<StartedCollective> started);
  // Returns when it is done, or throws what ended it. No buffer is held by this thread then.
  void wait(StartedCollective& started);
  void trace(TraceLog* log);  // nothing may be on its way

 private:
  void work();
  std::exception_ptr carry_out(StartedCollective& started);  // what ended it
  void run(StartedCollective& started);

  std::unique_ptr<Communicator> channel_;
  std::mutex mutex_;  // guards the queue, and `done` and `error` of what is in it
  RankCondition changed_;
  std::deque<std::shared_ptr<StartedCollective>> queue_;
  bool stop_ = false;
  std::exception_ptr failure_;  // of the first that failed; nothing is carried out after it
  std::thread thread_;
};

}  // namespace switchyard

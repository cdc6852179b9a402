// Overlap: a decorator whose started collectives go on while the rank's own thread does other things.
#pragma once

#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>

#include "core/workers.h"
#include "parallel/comm/comm_backend.h"

namespace switchyard {

// A thread that carries out one rank's started collectives, one after the other, on a channel of its own.
class ProgressThread {
 public:
  explicit ProgressThread(std::unique_ptr<CommBackend> channel);
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

  std::unique_ptr<CommBackend> channel_;
  std::mutex mutex_;  // guards the queue, and `done` and `error` of what is in it
  RankCondition changed_;
  std::deque<std::shared_ptr<StartedCollective>> queue_;
  bool stop_ = false;
  std::exception_ptr failure_;  // of the first that failed; nothing is carried out after it
  std::thread thread_;
};

class OverlappedBackend : public CommDecorator {
 public:
  // `channel`: a second channel of `inner`.
  OverlappedBackend(std::unique_ptr<CommBackend> inner, std::unique_ptr<CommBackend> channel)
      : CommDecorator(std::move(inner)), progress_(std::move(channel)) {}
  void start(const std::shared_ptr<StartedCollective>& started) override { progress_.start(started); }
  double finish(StartedCollective& started) override;  // a message names the place where it was started
  // Where the progress thread's events go; null: nowhere. Nothing may be on its way.
  void trace_progress(TraceLog* log) { progress_.trace(log); }

 private:
  ProgressThread progress_;
};

}  // namespace switchyard

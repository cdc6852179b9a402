// Overlap: a decorator whose started collectives proceed while the rank's own thread does other work.
#pragma once

#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>

#include "core/workers.h"
#include "parallel/comm/comm_backend.h"

namespace switchyard {

// A thread that carries out one rank's started collectives, one after the other, on its own channel.
class ProgressThread {
 public:
  explicit ProgressThread(std::unique_ptr<CommBackend> channel);
  // Waits for the running collective, which must be able to end: by success, or by failure as another rank
  // ended. Collectives that have not begun are dropped.
  ~ProgressThread();
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

  void start(std::shared_ptr<StartedCollective> started);
  // Returns when the collective is done, or throws its failure. This thread then holds no buffer.
  void wait(StartedCollective& started);
  void trace(TraceLog* log);  // no collective may be in flight

 private:
  void work();
  std::exception_ptr carry_out(StartedCollective& started);  // returns the failure, if any

  std::unique_ptr<CommBackend> channel_;
  std::mutex mutex_;  // guards the queue, and `done` and `error` of queued collectives
  RankCondition changed_;
  std::deque<std::shared_ptr<StartedCollective>> queue_;
  bool stop_ = false;
  std::exception_ptr failure_;  // the first failure; no collective is carried out after it
  std::thread thread_;
};

class OverlappedBackend : public CommDecorator {
 public:
  // `channel`: a second channel of `inner`.
  OverlappedBackend(std::unique_ptr<CommBackend> inner, std::unique_ptr<CommBackend> channel)
      : CommDecorator(std::move(inner)), progress_(std::move(channel)) {}
  void start(const std::shared_ptr<StartedCollective>& started) override { progress_.start(started); }
  double finish(StartedCollective& started) override;  // messages name the place where it was started
  // Sets the log of the progress thread's events; null: none. No collective may be in flight.
  void trace_progress(TraceLog* log) { progress_.trace(log); }

 private:
  ProgressThread progress_;
};

}  // namespace switchyard

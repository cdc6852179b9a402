#include "parallel/comm/progress_thread.h"

#include "core/error.h"

namespace switchyard {

ProgressThread::ProgressThread(std::unique_ptr<CommBackend> channel)
    : channel_(std::move(channel)), thread_([this] { work(); }) {}

ProgressThread::~ProgressThread() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void ProgressThread::start(std::shared_ptr<StartedCollective> started) {
  const std::scoped_lock lock(mutex_);
  queue_.push_back(std::move(started));
  changed_.notify_all();
}

void ProgressThread::wait(StartedCollective& started) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return started.done; });
  if (started.error) std::rethrow_exception(started.error);
}

void ProgressThread::trace(TraceLog* log) {
  const std::scoped_lock lock(mutex_);
  CHECK(queue_.empty(), "{} collectives on their way", queue_.size());
  channel_->position().trace = log;
}

void ProgressThread::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stop_ || !queue_.empty(); });
    if (stop_) return;
    const std::shared_ptr<StartedCollective> started = queue_.front();
    lock.unlock();
    if (!failure_) failure_ = carry_out(*started);
    lock.lock();
    queue_.pop_front();
    // The waiting rank must be the only owner, so that its own thread frees the buffers.
    started->buffers.clear();
    started->error = failure_;
    started->done = true;
    changed_.notify_all();
  }
}

std::exception_ptr ProgressThread::carry_out(StartedCollective& started) {
  Position& position = channel_->position();
  position.step = started.step;
  position.layer = started.layer;
  position.phase = started.phase;
  try {
    channel_->carry_out(started.group, started.call, started.operands);
  } catch (const std::exception& error) {
    channel_->failed(error);
    return std::current_exception();
  }
  return nullptr;
}

double OverlappedBackend::finish(StartedCollective& started) {
  const TraceSpan span(position().trace, "wait", "wait", position().layer);
  const std::int64_t begin = TraceLog::now();
  progress_.wait(started);
  return static_cast<double>(TraceLog::now() - begin) * 1e-9;
}

}  // namespace switchyard

#include "parallel/comm/nccl/transfer_watch.h"

#include <utility>

namespace switchyard {

TransferWatch::TransferWatch(std::unique_ptr<ProcessBackend> channel)
    : channel_(std::move(channel)), thread_([this] { work(); }) {}

TransferWatch::~TransferWatch() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void TransferWatch::add(std::shared_ptr<const StartedCollective> started, std::function<bool()> done) {
  const std::scoped_lock lock(mutex_);
  queue_.push_back({std::move(started), std::move(done)});
  changed_.notify_all();
}

void TransferWatch::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stop_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const Entry entry = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    wait_for(entry);
    lock.lock();
  }
}

void TransferWatch::wait_for(const Entry& entry) {
  const StartedCollective& started = *entry.started;
  Position& position = channel_->position();
  position.step = started.step;
  position.layer = started.layer;
  position.phase = started.phase;
  try {
    channel_->wait_until(started.group, started.call, entry.done);
  } catch (const std::exception& error) {
    channel_->failed(error);
  }
}

}  // namespace switchyard

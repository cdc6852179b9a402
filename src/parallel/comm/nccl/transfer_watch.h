// TransferWatch: a thread that waits for the transfers that a rank left to a GPU, while the rank goes on.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "parallel/comm/process_backend.h"

namespace switchyard {

class TransferWatch {
 public:
  // `channel`: a second channel of the backend between processes; its deadlines and fault messages apply. A
  // failure ends the run from the watch's thread, with the same message
  // that the rank itself would have printed.
  explicit TransferWatch(std::unique_ptr<ProcessBackend> channel);
  // Waits until all transfers are done. By then the run has ended, or the transfers are able to end.
  ~TransferWatch();
  TransferWatch(const TransferWatch&) = delete;
  TransferWatch& operator=(const TransferWatch&) = delete;

  // Transfers finish in the order in which they are added: the deadline of each starts at the end of the one
  // before or when it was added, whichever is later. The watch's thread polls done() until it returns true;
  // an exception from done() ends the run.
  void add(std::shared_ptr<const StartedCollective> started, std::function<bool()> done);

 private:
  struct Entry {
    std::shared_ptr<const StartedCollective> started;
    std::function<bool()> done;
  };
  void work();
  void wait_for(const Entry& entry);

  std::unique_ptr<ProcessBackend> channel_;
  std::mutex mutex_;  // guards the queue and stop_
  std::condition_variable changed_;
  std::deque<Entry> queue_;
  bool stop_ = false;
  std::thread thread_;  // last: it uses all members above
};

}  // namespace switchyard

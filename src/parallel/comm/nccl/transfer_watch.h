// TransferWatch: a thread that waits for what a rank's collectives left to a GPU, while the rank goes on.
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
  // `channel`: a second channel of the backend between the processes, whose deadlines and news of faults
  // count: what goes wrong ends the run from the watch's thread, with the line that the rank itself would
  // have had.
  explicit TransferWatch(std::unique_ptr<ProcessBackend> channel);
  // Waits until all is done. By then the run has ended, or transfers can end.
  ~TransferWatch();
  TransferWatch(const TransferWatch&) = delete;
  TransferWatch& operator=(const TransferWatch&) = delete;

  // Transfers are done in the order in which they are added: the deadline of each runs from the end of the
  // one before it, or from when it was added, which of both is later. done() is asked on the watch's thread
  // until it is true; what it throws ends the run.
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
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace switchyard

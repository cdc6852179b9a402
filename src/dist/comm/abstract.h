// A communicator that moves nothing: one rank of a mesh of any size, alone in its process.
//
// Calls, bytes and axes are counted by the same code as in a run; buffers are never touched.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "dist/comm/communicator.h"

namespace switchyard {

// A collective that would have run: what this rank sends to the others.
struct Transfer {
  std::string_view kind;
  const Group& group;
  std::int64_t bytes = 0;
};

// Takes the time of transfers; what is returned becomes the wait_seconds of counts().
class TransferClock {
 public:
  virtual ~TransferClock() = default;
  // One that the rank waits for: its seconds.
  virtual double transfer(const Transfer& transfer) = 0;
  // One that goes on while the rank does other things: when it is done. wait() for that: the seconds still to
  // wait.
  virtual double start(const Transfer& transfer) = 0;
  virtual double wait(double done) = 0;
};

class AbstractCommunicator : public Communicator {
 public:
  // Neighbouring ranks, `ranks_per_process` of them, are in one process.
  AbstractCommunicator(int rank, int size, int ranks_per_process, TransferClock& clock)
      : rank_(rank), size_(size), ranks_per_process_(ranks_per_process), clock_(clock) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  bool shares_memory() const override { return size_ <= ranks_per_process_; }
  int process_of(int rank) const override { return rank / ranks_per_process_; }
  std::shared_ptr<void> shared(const std::string&,
                               const std::function<std::shared_ptr<void>()>& make) override {
    return make();  // the only rank there is asks once
  }

 protected:
  bool moves_data() const override { return false; }
  double do_start(const std::function<double()>& work) override;
  double do_finish(const std::function<double()>& work, double done) override;
  double do_all_gather(const Group& group, const CollectiveCall& call, const void* in, void* out) override;
  double do_reduce_scatter(const Group& group, const CollectiveCall& call, const void* in,
                           void* out) override;
  double do_all_reduce(const Group& group, const CollectiveCall& call, void* data) override;
  double do_all_to_all(const Group& group, const CollectiveCall& call, const void* in, void* out) override;
  double do_ragged_all_to_all(const Group& group, const CollectiveCall& call,
                              const RaggedSide& side) override;
  double do_broadcast(const Group& group, const CollectiveCall& call, void* data) override;
  double do_barrier(const Group& group, const CollectiveCall& call) override;

 private:
  double time(const Transfer& transfer);

  const int rank_, size_, ranks_per_process_;
  TransferClock& clock_;
  bool starting_ = false;
};

}  // namespace switchyard

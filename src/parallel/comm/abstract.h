// A backend that moves nothing: one rank of a mesh of any size, alone in its process.
//
// Calls, bytes and axes are counted by the same code as in a run; buffers are never touched.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "parallel/comm/comm_backend.h"

namespace switchyard {

// A collective that would have run: what this rank sends to the others.
struct Transfer {
  Collective kind;
  const ProcessGroup& group;
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

class AbstractBackend : public CommBackend {
 public:
  // Neighbouring ranks, `ranks_per_process` of them, are in one process.
  AbstractBackend(int rank, int size, int ranks_per_process, TransferClock& clock)
      : rank_(rank), size_(size), ranks_per_process_(ranks_per_process), clock_(clock) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int process_of(int rank) const override { return rank / ranks_per_process_; }
  Position& position() override { return position_; }
  std::shared_ptr<void> shared(const std::string&,
                               const std::function<std::shared_ptr<void>()>& make) override {
    return make();  // the only rank there is asks once
  }
  double carry_out(const ProcessGroup& group, const CollectiveCall& call, const Operands& operands) override;
  void start(const std::shared_ptr<StartedCollective>& started) override;
  double finish(StartedCollective& started) override;

 private:
  const int rank_, size_, ranks_per_process_;
  TransferClock& clock_;
  Position position_;
};

}  // namespace switchyard

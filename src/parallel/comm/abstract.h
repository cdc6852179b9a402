// A backend that moves no data: it acts as one rank of a mesh of any size, alone in its process.
//
// The code of a real run counts calls, bytes and axes; buffers are never touched.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "parallel/comm/comm_backend.h"

namespace switchyard {

// A collective that a run would carry out: the data that this rank sends to others.
struct Transfer {
  Collective kind;
  const ProcessGroup& group;
  std::int64_t bytes = 0;
};

// Models the time of transfers; the returned seconds become the wait_seconds of counts().
class TransferClock {
 public:
  virtual ~TransferClock() = default;
  // Returns the seconds of a transfer that the rank waits for.
  virtual double transfer(const Transfer& transfer) = 0;
  // Returns the end time of a transfer that overlaps the rank's other work. wait() with that time returns the
  // seconds still to wait.
  virtual double start(const Transfer& transfer) = 0;
  virtual double wait(double done) = 0;
};

class AbstractBackend : public CommBackend {
 public:
  // Each process has `ranks_per_process` neighbouring ranks.
  AbstractBackend(int rank, int size, int ranks_per_process, TransferClock& clock)
      : rank_(rank), size_(size), ranks_per_process_(ranks_per_process), clock_(clock) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int process_of(int rank) const override { return rank / ranks_per_process_; }
  Position& position() override { return position_; }
  std::shared_ptr<void> shared(const std::string&,
                               const std::function<std::shared_ptr<void>()>& make) override {
    return make();  // called once, by the only rank there is
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

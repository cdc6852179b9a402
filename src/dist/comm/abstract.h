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

class AbstractCommunicator : public Communicator {
 public:
  // `seconds` says how long a transfer takes; it becomes the wait_seconds of counts().
  using Seconds = std::function<double(const Transfer&)>;
  // Neighbouring ranks, `ranks_per_process` of them, are threads of one process.
  AbstractCommunicator(int rank, int size, int ranks_per_process, Seconds seconds)
      : rank_(rank), size_(size), ranks_per_process_(ranks_per_process), seconds_(std::move(seconds)) {}
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
  const int rank_, size_, ranks_per_process_;
  const Seconds seconds_;
};

}  // namespace switchyard

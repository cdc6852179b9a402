// Collectives among GPUs, one process and one rank a GPU.
//
// What lies in a GPU's memory goes through NCCL: gathers and broadcasts are its own, exchanges are grouped
// sends and receives, and sums are exchanges of parts and a sum in group order on the GPU, so that all
// backends give the same bits. The host's memory goes through the processes' backend. It also carries the id
// of each new communicator, compares before each transfer what the ranks call, and has the deadlines: NCCL's
// communicators do not block, and while the host waits for one it hears of other ranks' failures.
//
// All work goes to the GPU's one stream. Two threads of a process could give it two collectives in an order
// that another process does not have, and both would wait for ever: so there is no second channel.
//
// A run that fails ends its processes, and their work on GPUs with them: nothing is aborted before, which
// might wait itself.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/tensor.h"
#include "dist/comm/nccl/library.h"
#include "dist/comm/process_backend.h"

namespace switchyard {

class NcclBackend : public CommDecorator {
 public:
  NcclBackend(std::unique_ptr<ProcessBackend> host, const NcclLibrary& library, Device& device);
  ~NcclBackend() override;

  double carry_out(const ProcessGroup& group, const CollectiveCall& call, const Operands& operands) override;
  void start(const std::shared_ptr<StartedCollective>& /*started*/) override {}
  double finish(StartedCollective& started) override {
    return carry_out(started.group, started.call, started.operands);
  }
  std::unique_ptr<CommBackend> second_channel() override { return nullptr; }

 private:
  // A collective that all ranks are known to call.
  struct Round {
    const ProcessGroup& group;
    const CollectiveCall& call;
    const Operands& operands;
    nccl::Comm* comm;
    int parts() const { return static_cast<int>(group.ranks.size()); }
  };
  // Bytes to or from another rank of the group.
  struct Move {
    int peer;
    const void* from;  // null: they are received
    void* to;
    std::int64_t bytes;
  };

  nccl::Comm* comm_of(const ProcessGroup& group, const CollectiveCall& call);
  void all_to_all(const Round& round);
  void ragged_all_to_all(const Round& round);
  void reduce_scatter(const Round& round);
  void sum_piece(const Round& round, std::int64_t first_run, std::int64_t runs, std::int64_t offset,
                 std::int64_t length, void* out);
  void all_reduce(const Round& round);

  void exchange(const Round& round, std::span<const Move> moves);
  // Waits until a call that NCCL answered with `status` is on the GPU's stream.
  void settle(const Round& round, nccl::Status status, const char* what);
  bool settled(const Round& round, const char* what);
  [[noreturn]] void fail(const Round& round, nccl::Status status, const char* what);
  std::byte* scratch(std::int64_t bytes);

  ProcessBackend& host_;
  const nccl::Api& api_;
  Device& device_;
  void* const stream_;
  std::map<std::vector<int>, nccl::Comm*> comms_;
  std::optional<double> failing_since_;  // seconds of the steady clock
  std::unique_ptr<Buffer> scratch_;
  std::vector<Move> moves_;
  std::vector<const void*> inputs_;
};

}  // namespace switchyard

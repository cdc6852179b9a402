// Collectives among GPUs, one process and one rank a GPU.
//
// What lies in a GPU's memory goes through NCCL: gathers and broadcasts are its own, exchanges are grouped
// sends and receives, and sums are exchanges of parts and a sum in group order on the GPU, so that all
// backends give the same bits. The host's memory goes through the processes' backend. It also carries the id
// of each new communicator, compares before each transfer what the ranks call, and has the deadlines: NCCL's
// communicators do not block, and while the host waits for one it hears of other ranks' failures.
//
// *Streams.* All transfers and their sums go to the GPU's stream of communication. It first waits for what
// the stream of computation was given before, which wrote the operands. start() returns when a transfer is in
// that stream; finish() has the stream of computation wait for its end, and the host for nothing. So started
// transfers go on beside products, without a thread. What is released after finish() is released in the order
// of the stream of computation, which comes after the transfer.
//
// *Order.* One stream does all transfers of a process in the order in which its rank's thread starts or calls
// them. All ranks of a group start and call in one order, which agree() makes sure of: so GPUs never wait for
// each other crosswise. Two threads could give the stream two collectives in an order that another process
// does not have: so there is no second channel.
//
// *Deadlines.* The host waits for other hosts before a transfer, and until NCCL has put it into the stream.
// From then on a TransferWatch waits for its end, and ends the process where that does not come, whatever the
// rank's own thread waits for meanwhile.
//
// A run that fails ends its processes, and their work on GPUs with them: nothing is aborted before, which
// might wait itself.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "core/tensor.h"
#include "parallel/comm/nccl/library.h"
#include "parallel/comm/nccl/transfer_watch.h"
#include "parallel/comm/process_backend.h"

namespace switchyard {

class NcclBackend : public CommDecorator {
 public:
  NcclBackend(std::unique_ptr<ProcessBackend> host, const NcclLibrary& library, Device& device);
  ~NcclBackend() override;

  double carry_out(const ProcessGroup& group, const CollectiveCall& call, const Operands& operands) override;
  void start(const std::shared_ptr<StartedCollective>& started) override;
  double finish(StartedCollective& started) override;
  std::unique_ptr<CommBackend> second_channel() override { return nullptr; }

 private:
  // A collective that all ranks are known to call.
  struct Round {
    const StartedCollective& started;
    nccl::Comm* comm;
    const ProcessGroup& group() const { return started.group; }
    const CollectiveCall& call() const { return started.call; }
    const Operands& operands() const { return started.operands; }
    int parts() const { return static_cast<int>(group().ranks.size()); }
  };
  // Bytes to or from another rank of the group.
  struct Move {
    int peer;
    const void* from;  // null: they are received
    void* to;
    std::int64_t bytes;
  };

  void transfer(const Round& round);
  void all_gather(const Round& round);
  void broadcast(const Round& round);
  nccl::Comm* comm_of(const StartedCollective& started);
  void all_to_all(const Round& round);
  void ragged_all_to_all(const Round& round);
  void reduce_scatter(const Round& round);
  void sum_piece(const Round& round, std::int64_t first_run, std::int64_t runs, std::int64_t offset,
                 std::int64_t length, void* out);
  void all_reduce(const Round& round);

  static bool moves_nothing(const Round& round, const Move& move) {
    return move.bytes == 0 || move.peer == round.group().index;
  }
  void exchange(const Round& round, std::span<const Move> moves);
  nccl::Status enqueue(const Round& round, std::span<const Move> moves);
  // Waits until a call that NCCL answered with `status` is on the GPU's stream.
  void settle(const Round& round, nccl::Status status, const char* what);
  // Whether NCCL has nothing left to do but what is on the stream. `failing_since`: when it first told the
  // caller of an error, in seconds of the steady clock; throws a second later.
  bool settled(const Round& round, std::optional<double>& failing_since, const char* what);
  [[noreturn]] void fail(const Round& round, nccl::Status status, const char* what);
  std::byte* scratch(std::int64_t bytes);

  ProcessBackend& host_;
  const nccl::Api& api_;
  Device& device_;
  void* const stream_;
  std::map<std::vector<int>, nccl::Comm*> comms_;
  std::mutex calls_;                 // held around NCCL's calls: the watch asks communicators, too
  std::unique_ptr<Buffer> scratch_;  // of the stream of communication
  std::vector<Move> moves_;
  std::vector<const void*> inputs_;
  std::unique_ptr<TransferWatch> watch_;  // last: its thread uses what is above
};

}  // namespace switchyard

// Collectives between GPUs; each process has one rank and one GPU.
//
// Data in a GPU's memory goes through NCCL: gathers and broadcasts are NCCL's own; exchanges are grouped
// sends and receives; sums are exchanges of parts and a sum in group order on the GPU, so all backends give
// the same bits. Data of the host goes through the backend between processes. It also sends the id of each
// new communicator, compares the ranks' calls before each transfer, and has the deadlines: NCCL's
// communicators do not block, and a host that waits for one learns of other ranks' failures.
//
// *Streams.* All transfers and their sums go to the GPU's communication stream. It first waits for the work
// issued before to the computation stream, which wrote the operands. start() returns when a transfer is in
// that stream; finish() makes the computation stream, not the host, wait for its end. So started transfers
// overlap matrix products, without a thread. Memory released after finish() is released in the order of the
// computation stream, which comes after the transfer.
//
// *Order.* One stream does all transfers of a process in the order in which its rank's thread starts or calls
// them. All ranks of a group start and call in one order, which agree() enforces: so GPUs never deadlock. Two
// threads could issue two collectives to the stream in an order that another process does not have: so there
// is no second channel.
//
// *Deadlines.* The host waits for other hosts before a transfer, and until NCCL has put it into the stream.
// From then on a TransferWatch waits for the transfer's end, and ends the process when it does not come in
// time, even while the rank's own thread waits for something else.
// A run that fails ends its processes, and
// their work on GPUs with them. Nothing is
// aborted before that, as an abort might block.
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
  // A collective that all ranks are known to have called.
  struct Round {
    const StartedCollective& started;
    nccl::Comm* comm;
    const ProcessGroup& group() const { return started.group; }
    const CollectiveCall& call() const { return started.call; }
    const Operands& operands() const { return started.operands; }
    int parts() const { return static_cast<int>(group().ranks.size()); }
  };
  // Bytes sent to or received from another rank of the group.
  struct Move {
    int peer;
    const void* from;  // null: the bytes are received
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
  // Waits until an NCCL call that returned `status` is on the GPU's stream.
  void settle(const Round& round, nccl::Status status, const char* what);
  // True when NCCL has no work left except on the stream. `failing_since`: when NCCL first reported an error
  // to the caller, in seconds of the steady clock; throws a second later.
  bool settled(const Round& round, std::optional<double>& failing_since, const char* what);
  [[noreturn]] void fail(const Round& round, nccl::Status status, const char* what);
  std::byte* scratch(std::int64_t bytes);

  ProcessBackend& host_;
  const nccl::Api& api_;
  Device& device_;
  void* const stream_;
  std::map<std::vector<int>, nccl::Comm*> comms_;
  std::mutex calls_;                 // held during NCCL's calls: the watch queries communicators, too
  std::unique_ptr<Buffer> scratch_;  // of the communication stream
  std::vector<Move> moves_;
  std::vector<const void*> inputs_;
  std::unique_ptr<TransferWatch> watch_;  // last: its thread uses the members above
};

}  // namespace switchyard

// Communicator: collectives among the ranks of a run, one object per rank, used by one thread at a time.
//
// Rules for every backend:
//
// - *Order.* All members of a group call the same collectives in the same order with the same ordered ranks.
//   Kind, axis, dtype and sizes are compared between ranks in every build; a difference is Error(runtime) on
//   all of them.
//
// - *Sums* add in group order, starting from the first rank's value, in float32 (float32, bfloat16), float64
//   (float64) or int64 (int32), and are rounded once. So backends and reruns agree bit for bit.
//
// - *Return.* A call returns when this rank's output is complete and its input may be reused; on a GPU, for
//   work issued to its stream from then on. It fails with Error(runtime) when another rank failed or the
//   deadline passed; after that the communicator cannot be used.
//
// - *One rank.* A group of one rank copies locally and is not counted.
//
// - *Started collectives* use their own channel, in the order of the starts, which is the same on all ranks
//   of a group: they never mix with collectives that the rank's own thread calls meanwhile. Between GPUs of
//   several processes, both kinds share one order, which must be the same on all ranks of a group.
//
// - *Gradients* (whole and partial exchange, see sharding.h): all_gather <-> reduce_scatter.
//   all_reduce is its own gradient (partial -> whole), and so is all_to_all.
//   The gradient of ragged_all_to_all is the same call
//   with sends and receives exchanged.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/tensor_view.h"
#include "parallel/comm/comm_backend.h"
#include "parallel/comm/counted.h"
#include "parallel/comm/fault.h"

namespace switchyard {

class OverlappedBackend;
class SharedMemory;

// A view of the host's numbers, for data that is not a tensor but is sent all the same. A type without a
// DType is viewed as bytes.
template <typename T, std::size_t N>
TensorView host_view(std::span<T, N> values) {
  using Element = std::remove_const_t<T>;
  const auto count = static_cast<std::int64_t>(values.size());
  if constexpr (requires { dtype_of<Element>::value; })
    return TensorView::of_host(dtype_of<Element>::value, values.data(), {count});
  else
    return TensorView::of_host(DType::u8, values.data(),
                               {count * static_cast<std::int64_t>(sizeof(Element))});
}
template <typename T>
TensorView host_view(std::vector<T>& values) {
  return host_view(std::span(values));
}
template <typename T>
TensorView host_view(const std::vector<T>& values) {
  return host_view(std::span(values));
}

class Communicator {
 public:
  explicit Communicator(std::unique_ptr<CommBackend> backend);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return top_->rank(); }
  int size() const { return top_->size(); }
  int process_of(int rank) const { return top_->process_of(rank); }  // the process that runs `rank`
  bool in_one_process() const { return process_of(0) == process_of(size() - 1); }
  // Sets the device of this rank's tensors. Ranks do not read each other's memory on a GPU.
  void use_device(const Device& device) {
    if (device.is_gpu()) shared_memory_.reset();
  }
  // Operations of ranks that read each other's memory; null when these ranks do not.
  SharedMemory* shared_memory() const { return shared_memory_.get(); }

  Position& position() { return top_->position(); }
  const Position& position() const { return top_->position(); }
  // Makes the fault happen at a collective of this rank; tests use it to see how a run reacts.
  void inject(const Fault& fault);

  // Below, P is the group's size. Views have no gaps; input and output must not overlap unless noted.

  // Every rank passes `in`; `out` gets the P inputs in group order. `in` may be this rank's part of `out`.
  void all_gather(const ProcessGroup& group, const TensorView& in, const TensorView& out);
  // `in`: [runs, P, out.size() / runs] elements; `out`: the sum over ranks of this rank's part, run after
  // run. float32, bfloat16, int32. `out` has the dtype of `in`,
  // or is the unrounded float32 sum of bfloat16 inputs.
  void reduce_scatter(const ProcessGroup& group, const TensorView& in, const TensorView& out,
                      std::int64_t runs = 1);
  // Sums over ranks, in place. float32, bfloat16, int32, float64.
  void all_reduce(const ProcessGroup& group, const TensorView& x);
  // Part j of the P parts of `in` goes to group rank j, where it becomes part `group.index` of `out`.
  void all_to_all(const ProcessGroup& group, const TensorView& in, const TensorView& out);
  // Exchanges rows along dim 0: send.counts[j] rows from row send.offsets[j] of `in` go to group rank j;
  // receive.counts[i] rows of group rank i arrive at row receive.offsets[i] of `out`. All four spans have P
  // entries; counts must agree between ranks.
  void ragged_all_to_all(const ProcessGroup& group, const TensorView& in, const RaggedRows& send,
                         const TensorView& out, const RaggedRows& receive);
  // Sends `x` of group rank `root` to all ranks of the group.
  void broadcast(const ProcessGroup& group, int root, const TensorView& x);
  void barrier(const ProcessGroup& group);

  // From now on a progress thread carries out the collectives started below, unless the backend does so
  // without a thread (between GPUs of several processes). All ranks must call it. Error(usage) when MPI
  // serves one thread only.
  void start_progress_thread();
  // Start the collectives above and return at once, so that they overlap other work. `buffers` keep `in` and
  // `out` alive; neither may be touched before finish().
  // Without a progress thread, finish() does all the work.
  using Buffers = std::vector<std::shared_ptr<void>>;
  std::shared_ptr<StartedCollective> start_all_gather(const ProcessGroup& group, const TensorView& in,
                                                      const TensorView& out, Buffers buffers);
  // The group must have several ranks.
  std::shared_ptr<StartedCollective> start_ragged_all_to_all(const ProcessGroup& group, const TensorView& in,
                                                             const RaggedRows& send, const TensorView& out,
                                                             const RaggedRows& receive, Buffers buffers);
  // Waits until the collective is done. Throws its failure; the message names the place where it was started.
  void finish(StartedCollective& started);
  // Sets the log of the progress thread's events; null: none. No collective may be in flight.
  void trace_progress(TraceLog* log);

  std::vector<CollectiveCount> counts() const { return counted_->counts(); }
  void reset_counts() { counted_->reset_counts(); }

  // Returns one object shared by all ranks of the process under `key`; the first caller makes it. Not
  // collective; thread safe. Held until the ranks end. When `make` throws, nothing is stored.
  std::shared_ptr<void> shared(const std::string& key, const std::function<std::shared_ptr<void>()>& make) {
    return top_->shared(key, make);
  }

 private:
  friend class SharedMemory;
  // CHECKs that the call and the group are consistent and that the group contains this rank.
  void check(const ProcessGroup& group, const CollectiveCall& call) const;
  void carry_out(const ProcessGroup& group, const CollectiveCall& call, const Operands& operands);
  std::shared_ptr<StartedCollective> start(std::shared_ptr<StartedCollective> started);

  std::unique_ptr<CommBackend> top_;         // decorators around the backend
  CountedBackend* counted_ = nullptr;        // one of the decorators
  OverlappedBackend* overlapped_ = nullptr;  // another decorator, once there is a progress thread
  std::unique_ptr<SharedMemory> shared_memory_;
};

// Extra operations of ranks that read each other's memory. Each is counted like the collective that would
// have moved the bytes.
class SharedMemory {
 public:
  explicit SharedMemory(Communicator& comm) : comm_(comm) {}

  using Make = std::function<std::shared_ptr<void>()>;
  using Place = std::function<void(void* made)>;
  // An all-gather of `bytes` per rank with one result shared by all ranks. One rank calls `make` first; then
  // every rank calls `place` on the result, to write its part. `place` must not throw. A change of the result
  // is a change for all ranks.
  std::shared_ptr<void> all_gather(const ProcessGroup& group, std::int64_t bytes, const Make& make,
                                   const Place& place);
  // An all_gather without the count, as no bytes would be moved: every rank would compute the same result,
  // and instead each computes a part. The group must have several ranks.
  std::shared_ptr<void> make_together(const ProcessGroup& group, const Make& make, const Place& place);

  // The two exchanges, where each rank reads its parts directly from the others' memory: take(i, in) is
  // called with the `in` of group rank i, whose dtype and shape are those of this rank's `in`, except the
  // rows of a ragged exchange. It must not throw.
  using Take = std::function<void(std::size_t index, const TensorView& in)>;
  void all_to_all(const ProcessGroup& group, const TensorView& in, const Take& take);
  void ragged_all_to_all(const ProcessGroup& group, const TensorView& in,
                         std::span<const std::int64_t> send_counts,
                         std::span<const std::int64_t> receive_counts, const Take& take);

 private:
  void exchange(const ProcessGroup& group, const CollectiveCall& call, const TensorView& in,
                Operands operands, const Take& take);

  Communicator& comm_;
};

// The group of all ranks of the run, under the name `axis`.
ProcessGroup everyone(const Communicator& comm, std::string axis);

}  // namespace switchyard

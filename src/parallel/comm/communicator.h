// Communicator: collectives among the ranks of a run, one object per rank, used by one thread at a time.
//
// What holds for every backend:
//
// - *Order.* All members of a group call the same collectives in the same order with the same ordered ranks.
//   Kind, axis, dtype and sizes are compared between ranks in every build; a difference is Error(runtime) on
//   all of them.
//
// - *Sums* add in group order, starting from the first rank's value, in float32 (float32, bfloat16), float64
//   (float64) or int64 (int32), and are rounded once. So backends and reruns agree bit for bit.
//
// - *Return.* A call returns when this rank's output is complete and its input may be reused; on a GPU: for
//   what is given to its stream from then on. It fails with Error(runtime) when another rank failed or the
//   deadline passed; after that the communicator is dead.
//
// - *One rank.* A group of one rank copies locally and is not counted.
//
// - *Started collectives* go over a channel of their own, in the order of the starts, which is the same on
// all ranks of a group: they never meet what the rank's own thread calls meanwhile. Between GPUs of several
// processes they have one order with these calls, which all ranks of a group must share.
//
// - *Gradients* (whole and partial exchange, see sharding.h): all_gather <-> reduce_scatter; all_reduce is
// its
//   own (partial -> whole), as is all_to_all; ragged_all_to_all's is the call with sends and receives
//   exchanged.
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

// A view of numbers of the host: what is not a tensor but travels all the same. Types that are no DType are
// bytes.
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
  int process_of(int rank) const { return top_->process_of(rank); }  // the process that has a rank
  bool in_one_process() const { return process_of(0) == process_of(size() - 1); }
  // Says where the tensors of this rank are. Ranks do not read each other's memory where it is a GPU's.
  void use_device(const Device& device) {
    if (device.is_gpu()) shared_memory_.reset();
  }
  // What only ranks that read each other's memory can do; null where these ranks do not.
  SharedMemory* shared_memory() const { return shared_memory_.get(); }

  Position& position() { return top_->position(); }
  const Position& position() const { return top_->position(); }
  // Makes the fault happen at a collective of this rank; for tests of what a fault does to a run.
  void inject(const Fault& fault);

  // Below, P is the size of the group. Views have no gaps; input and output must not overlap unless said.

  // Every rank gives `in`; `out` gets the P inputs in group order. `in` may be this rank's place in `out`.
  void all_gather(const ProcessGroup& group, const TensorView& in, const TensorView& out);
  // `in`: [runs, P, out.size() / runs] elements; `out`: the sum over ranks of this rank's part, run after
  // run. float32, bfloat16, int32. `out` has the dtype of `in`, or is the float32 sum of bfloat16, not
  // rounded.
  void reduce_scatter(const ProcessGroup& group, const TensorView& in, const TensorView& out,
                      std::int64_t runs = 1);
  // Sum over ranks, in place. float32, bfloat16, int32, float64.
  void all_reduce(const ProcessGroup& group, const TensorView& x);
  // Part j of the P parts of `in` goes to group rank j, where it becomes part `group.index` of `out`.
  void all_to_all(const ProcessGroup& group, const TensorView& in, const TensorView& out);
  // Rows are those of dim 0: send.counts[j] rows from row send.offsets[j] of `in` go to group rank j;
  // receive.counts[i] rows of group rank i land at row receive.offsets[i] of `out`. All four spans have P
  // entries; counts must agree between ranks.
  void ragged_all_to_all(const ProcessGroup& group, const TensorView& in, const RaggedRows& send,
                         const TensorView& out, const RaggedRows& receive);
  // `x` of group rank `root` to all.
  void broadcast(const ProcessGroup& group, int root, const TensorView& x);
  void barrier(const ProcessGroup& group);

  // From now on a progress thread carries out what is started below, unless the backend does so without one
  // (between GPUs of several processes). All ranks call it alike. Error(usage) where MPI serves one thread
  // only.
  void start_progress_thread();
  // The same as above, going on while this thread does other things. `buffers` keep `in` and `out` alive;
  // neither may be touched before finish(). Where nobody carries them out meanwhile nothing happens until
  // then.
  using Buffers = std::vector<std::shared_ptr<void>>;
  std::shared_ptr<StartedCollective> start_all_gather(const ProcessGroup& group, const TensorView& in,
                                                      const TensorView& out, Buffers buffers);
  // Of a group of several ranks.
  std::shared_ptr<StartedCollective> start_ragged_all_to_all(const ProcessGroup& group, const TensorView& in,
                                                             const RaggedRows& send, const TensorView& out,
                                                             const RaggedRows& receive, Buffers buffers);
  // Waits until it is done. Throws what ended it; a message names the place where it was started.
  void finish(StartedCollective& started);
  // Where the progress thread's events go; null: nowhere. Nothing may be on its way.
  void trace_progress(TraceLog* log);

  std::vector<CollectiveCount> counts() const { return counted_->counts(); }
  void reset_counts() { counted_->reset_counts(); }

  // One object shared by all ranks of the process under `key`: the first caller makes it, the others get the
  // same. Not collective; thread safe. Held until the ranks end. A `make` that throws leaves nothing behind.
  std::shared_ptr<void> shared(const std::string& key, const std::function<std::shared_ptr<void>()>& make) {
    return top_->shared(key, make);
  }

 private:
  friend class SharedMemory;
  // CHECKs that the call and the group make sense and that the group names this rank.
  void check(const ProcessGroup& group, const CollectiveCall& call) const;
  void carry_out(const ProcessGroup& group, const CollectiveCall& call, const Operands& operands);
  std::shared_ptr<StartedCollective> start(std::shared_ptr<StartedCollective> started);

  std::unique_ptr<CommBackend> top_;         // decorators around the backend
  CountedBackend* counted_ = nullptr;        // one of them
  OverlappedBackend* overlapped_ = nullptr;  // another one, once there is a progress thread
  std::unique_ptr<SharedMemory> shared_memory_;
};

// What ranks that read each other's memory can do beside the collectives. Counted like the collective that
// would have moved the bytes.
class SharedMemory {
 public:
  explicit SharedMemory(Communicator& comm) : comm_(comm) {}

  using Make = std::function<std::shared_ptr<void>()>;
  using Place = std::function<void(void* made)>;
  // An all-gather of `bytes` a rank with one result for all: what `make` returns, which one rank calls first;
  // then every rank calls `place` on it, to write its part. `place` must not throw. Whoever changes the
  // result changes it for all.
  std::shared_ptr<void> all_gather(const ProcessGroup& group, std::int64_t bytes, const Make& make,
                                   const Place& place);
  // The same where nothing would be moved, and nothing is counted: each rank makes a part of what all would
  // make alike. Of several ranks.
  std::shared_ptr<void> make_together(const ProcessGroup& group, const Make& make, const Place& place);

  // The two exchanges, in which each rank takes its parts from the others' memory where they lie: take(i, in)
  // is called with the `in` of group rank i, of the dtype and shape of this rank's own, but for the rows of a
  // ragged exchange. It must not throw.
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

// All ranks of the run, under the name `axis`.
ProcessGroup everyone(const Communicator& comm, std::string axis);

}  // namespace switchyard

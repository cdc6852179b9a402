// Communicator: collectives among the ranks of a run, one object per rank, used by one thread at a time.
//
// Invariants of every backend:
// 1. All members of a group call the same collectives in the same order with the same ordered ranks. Kind,
// axis, dtype
//    and sizes are compared between ranks in every build; a difference is Error(runtime) on all of them.
// 2. Sums add in group order, starting from the first rank's value, in float32 (float32, bfloat16), float64
// (float64)
//    or int64 (int32), and are rounded once. So backends and reruns agree bit for bit.
// 3. A call returns when this rank's output is complete and its input may be reused. It fails with
// Error(runtime) when
//    another rank failed or the deadline passed; after that the communicator is dead.
// 4. A group of one rank copies locally and is not counted.
// 5. What start_*() starts goes over a channel of its own, in the order of the starts, which is the
// same on
//    all ranks of a group. So it never meets the collectives that the rank's own thread calls meanwhile.
//
// Gradients (whole and partial exchange, see sharding.md): all_gather <-> reduce_scatter; all_reduce is its
// own (partial -> whole), as is all_to_all; ragged_all_to_all's is the call with sends and receives
// exchanged.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "core/dtype.h"
#include "core/tensor_view.h"
#include "core/trace.h"
#include "dist/comm/fault.h"

namespace switchyard {

// World ranks in order, and my position among them.
struct Group {
  std::vector<int> ranks;
  int index = 0;
};

// Where a rank is in its run, for messages about faults and for counters. Set by trainer and decoder, read by
// any thread.
struct Position {
  std::atomic<std::int64_t> step{-1};       // -1 before the first one
  std::atomic<std::int64_t> layer{-1};      // -1 outside the layers
  std::atomic<const char*> phase{"start"};  // a literal
  TraceLog* trace = nullptr;                // of the rank's own thread, which alone reads and sets it
};
// " in layer 2, step 17 (backward)"; empty before the first step.
std::string to_string(const Position& position);

// A phase of the step while it lives; the one before comes back at its end.
class PhaseMark {
 public:
  PhaseMark(Position& position, const char* phase)
      : position_(position),
        before_(position.phase),
        exceptions_(std::uncaught_exceptions()),
        span_(position.trace, phase, "phase") {
    position.phase = phase;
  }
  ~PhaseMark() {
    if (std::uncaught_exceptions() == exceptions_) position_.phase = before_;  // else the message needs it
  }
  PhaseMark(const PhaseMark&) = delete;
  PhaseMark& operator=(const PhaseMark&) = delete;

 private:
  Position& position_;
  const char* before_;
  const int exceptions_;
  const TraceSpan span_;
};

// What this rank did since the last reset. `bytes`: payload this rank sends to other ranks, each destination
// counted: all_gather bytes*(P-1), reduce_scatter count*size*(P-1), all_to_all bytes_per_rank*(P-1),
// ragged_all_to_all the rows to others, broadcast bytes*(P-1) at the root and 0 elsewhere, all_reduce the sum
// of a reduce_scatter and an all_gather of slices. `wait_seconds`: time spent waiting for other ranks to
// arrive.
struct CollectiveCount {
  std::string kind;
  std::string axis;
  std::string where;  // Position's phase
  std::int64_t calls = 0;
  std::int64_t bytes = 0;
  double wait_seconds = 0;
};

// What the ranks of one collective must agree on.
struct CollectiveCall {
  std::string_view kind;
  std::string_view axis;
  std::string_view type;  // element type of a reduction, "bytes" otherwise
  std::int64_t size = 0;  // bytes or elements a rank, row bytes of a ragged exchange
  std::int64_t root = 0;  // group index of the root of a broadcast
  std::int64_t runs = 1;  // of a rank's part in the input of a reduce-scatter
  bool operator==(const CollectiveCall&) const = default;
};
std::string to_string(const CollectiveCall& call);

// One rank's side of a ragged all-to-all; offsets and counts in rows.
struct RaggedSide {
  const void* in = nullptr;
  std::span<const std::int64_t> send_offsets{};
  std::span<const std::int64_t> send_counts{};
  void* out = nullptr;
  std::span<const std::int64_t> recv_offsets{};
  std::span<const std::int64_t> recv_counts{};
};

// Part `index` of `count` elements cut into `parts` contiguous slices, the first ones one longer. All-reduce
// works slice by slice.
struct Slice {
  std::int64_t begin;
  std::int64_t end;
};
Slice slice_of(std::int64_t count, int parts, int index);

// A collective on its way.
struct StartedCollective;
class ProgressThread;

class Communicator {
 public:
  Communicator();
  virtual ~Communicator();
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual bool shares_memory() const = 0;                   // ranks are in one process
  virtual int process_of(int /*rank*/) const { return 0; }  // the process that has a rank

  Position& position() { return position_; }
  // Makes the fault happen on this rank; for tests of what a fault does to a run.
  void inject(const Fault& fault) { fault_ = fault; }
  // Whether this rank's numbers should be wrong now, by a fault of this kind in this phase.
  bool suffers(Fault::Kind kind, std::string_view phase) const;

  // Below, P is the size of the group, `axis` names the mesh axes of the group ("data", "data+fsdp") for
  // counters and errors, and input and output must not overlap unless said.

  // Every rank gives `bytes` bytes; `out` gets P x `bytes` in group order. `in` may be this rank's place in
  // `out`.
  void all_gather(const Group& group, std::string_view axis, const void* in, void* out, std::int64_t bytes);
  // The same among ranks of one process (shares_memory), which all get one result: it is what `make` returns,
  // which one rank calls first; then every rank calls `place` on it, to write its part. `place` must not
  // throw. Whoever changes the result changes it for all.
  using Make = std::function<std::shared_ptr<void>()>;
  using Place = std::function<void(void* made)>;
  std::shared_ptr<void> all_gather_shared(const Group& group, std::string_view axis, std::int64_t bytes,
                                          const Make& make, const Place& place);
  // The same where nothing is moved and nothing is counted: what all would make alike, made once.
  std::shared_ptr<void> make_together(const Group& group, std::string_view axis, const Make& make,
                                      const Place& place);
  // `in`: [runs, P, count / runs] elements; `out`: `count` elements, the sum over ranks of this rank's part,
  // run after run. float32, bfloat16, int32.
  void reduce_scatter(const Group& group, std::string_view axis, DType dtype, const void* in, void* out,
                      std::int64_t count, std::int64_t runs = 1);
  // The same for bfloat16 with a float32 sum, which is not rounded.
  void reduce_scatter_widened(const Group& group, std::string_view axis, const void* in, float* out,
                              std::int64_t count);
  // Sum over ranks of `count` elements, in place. float32, bfloat16, int32, float64.
  void all_reduce(const Group& group, std::string_view axis, DType dtype, void* data, std::int64_t count);
  void all_reduce_f64(const Group& group, std::string_view axis, double* data, std::int64_t count);
  // Part j of `in` goes to group rank j, where it becomes part `group.index` of `out`; P parts of
  // `bytes_per_rank`.
  void all_to_all(const Group& group, std::string_view axis, const void* in, void* out,
                  std::int64_t bytes_per_rank);
  // Rows of `row_bytes`: send_counts[j] rows from row send_offsets[j] of `in` go to group rank j;
  // recv_counts[i] rows of group rank i land at row recv_offsets[i] of `out`. All four spans have P entries;
  // counts must agree between ranks.
  void ragged_all_to_all(const Group& group, std::string_view axis, const void* in,
                         std::span<const std::int64_t> send_offsets,
                         std::span<const std::int64_t> send_counts, void* out,
                         std::span<const std::int64_t> recv_offsets,
                         std::span<const std::int64_t> recv_counts, std::int64_t row_bytes);
  // The two among ranks of one process (shares_memory), each of which takes its parts from the others'
  // memory where they lie: take(i, in) is called with the `in` of group rank i. It must not throw.
  using Take = std::function<void(std::size_t index, const void* in)>;
  void all_to_all_shared(const Group& group, std::string_view axis, const void* in,
                         std::int64_t bytes_per_rank, const Take& take);
  void ragged_all_to_all_shared(const Group& group, std::string_view axis, const void* in,
                                std::span<const std::int64_t> send_counts,
                                std::span<const std::int64_t> recv_counts, std::int64_t row_bytes,
                                const Take& take);
  // `data` of group rank `root_index` to all.
  void broadcast(const Group& group, std::string_view axis, int root_index, void* data, std::int64_t bytes);
  void barrier(const Group& group, std::string_view axis);

  // The collectives as ops call them: on views without gaps of a device's memory, whose dtypes and sizes say
  // the rest.
  void all_gather(const Group& group, std::string_view axis, const TensorView& in, const TensorView& out) {
    all_gather(group, axis, in.kernel_address(), out.kernel_address(), bytes_of(in));
  }
  // `out` has the dtype of `in`, or is the float32 sum of bfloat16.
  void reduce_scatter(const Group& group, std::string_view axis, const TensorView& in, const TensorView& out,
                      std::int64_t runs = 1) {
    if (in.dtype() == out.dtype())
      reduce_scatter(group, axis, in.dtype(), in.kernel_address(), out.kernel_address(), out.size(), runs);
    else
      reduce_scatter_widened(group, axis, in.kernel_address(), out.kernel_data<float>(), out.size());
  }
  void all_reduce(const Group& group, std::string_view axis, const TensorView& x) {
    all_reduce(group, axis, x.dtype(), x.kernel_address(), x.size());
  }
  void all_to_all(const Group& group, std::string_view axis, const TensorView& in, const TensorView& out) {
    all_to_all(group, axis, in.kernel_address(), out.kernel_address(),
               bytes_of(in) / static_cast<std::int64_t>(group.ranks.size()));
  }
  // Rows are those of dim 0.
  void ragged_all_to_all(const Group& group, std::string_view axis, const TensorView& in,
                         std::span<const std::int64_t> send_offsets,
                         std::span<const std::int64_t> send_counts, const TensorView& out,
                         std::span<const std::int64_t> recv_offsets,
                         std::span<const std::int64_t> recv_counts) {
    ragged_all_to_all(group, axis, in.kernel_address(), send_offsets, send_counts, out.kernel_address(),
                      recv_offsets, recv_counts, row_bytes(in));
  }
  // take(i, in) is called with the `in` of group rank i: the same dtype, and the shape of this rank's own,
  // but for the rows of a ragged exchange.
  using TakeView = std::function<void(std::size_t index, const TensorView& in)>;
  void all_to_all_shared(const Group& group, std::string_view axis, const TensorView& in,
                         const TakeView& take) {
    all_to_all_shared(group, axis, in.kernel_address(),
                      bytes_of(in) / static_cast<std::int64_t>(group.ranks.size()), taking(in, take));
  }
  void ragged_all_to_all_shared(const Group& group, std::string_view axis, const TensorView& in,
                                std::span<const std::int64_t> send_counts,
                                std::span<const std::int64_t> recv_counts, const TakeView& take) {
    ragged_all_to_all_shared(group, axis, in.kernel_address(), send_counts, recv_counts, row_bytes(in),
                             taking(in, take));
  }
  void broadcast(const Group& group, std::string_view axis, int root_index, const TensorView& x) {
    broadcast(group, axis, root_index, x.kernel_address(), bytes_of(x));
  }

  // From now on a progress thread carries out what is started below. All ranks call it alike. Error(usage)
  // where MPI serves one thread only.
  void start_progress_thread();
  // The same as above, going on while this thread does other things. `buffers` keep `in` and `out` alive;
  // neither may be touched before finish(). Without a progress thread nothing happens until then.
  using Buffers = std::vector<std::shared_ptr<void>>;
  std::shared_ptr<StartedCollective> start_all_gather(const Group& group, std::string_view axis,
                                                      const void* in, void* out, std::int64_t bytes,
                                                      Buffers buffers);
  std::shared_ptr<StartedCollective> start_ragged_all_to_all(const Group& group, std::string_view axis,
                                                             const RaggedSide& side, std::int64_t row_bytes,
                                                             Buffers buffers);
  std::shared_ptr<StartedCollective> start_all_gather(const Group& group, std::string_view axis,
                                                      const TensorView& in, const TensorView& out,
                                                      Buffers buffers) {
    return start_all_gather(group, axis, in.kernel_address(), out.kernel_address(), bytes_of(in),
                            std::move(buffers));
  }
  std::shared_ptr<StartedCollective> start_ragged_all_to_all(
      const Group& group, std::string_view axis, const TensorView& in,
      std::span<const std::int64_t> send_offsets, std::span<const std::int64_t> send_counts,
      const TensorView& out, std::span<const std::int64_t> recv_offsets,
      std::span<const std::int64_t> recv_counts, Buffers buffers) {
    const RaggedSide side{in.kernel_address(),  send_offsets, send_counts,
                          out.kernel_address(), recv_offsets, recv_counts};
    return start_ragged_all_to_all(group, axis, side, row_bytes(in), std::move(buffers));
  }
  // Waits until it is done, and counts it here, where its result is asked for; its wait_seconds are those
  // spent in this call. Throws what ended it; a message names the place where it was started.
  void finish(StartedCollective& started);
  // Where the progress thread's events go; null: nowhere. Nothing may be on its way.
  void trace_progress(TraceLog* log);

  // Ordered by kind, then axis, then where.
  std::vector<CollectiveCount> counts() const;
  void reset_counts() { counts_.clear(); }

  // One object shared by all ranks of the process under `key`: the first caller makes it, the others get the
  // same. Not collective; thread safe. Held until the ranks end. A `make` that throws leaves nothing behind.
  // On a communicator whose ranks do not share memory every rank has its own.
  virtual std::shared_ptr<void> shared(const std::string& key,
                                       const std::function<std::shared_ptr<void>()>& make) = 0;

 protected:
  // Another communicator of the same rank, whose collectives never meet those of this one; null: none.
  virtual std::unique_ptr<Communicator> second_channel() { return nullptr; }

  // What a failure of a started collective does at once, on the progress thread; returning leaves it to
  // finish().
  virtual void failed(const std::exception& /*failure*/) {}

  // Without a progress thread: what is done when a collective is started, and when it is finished. `work`
  // carries it out; by default all of it at the end.
  virtual double do_start(const std::function<double()>& /*work*/) { return 0; }
  virtual double do_finish(const std::function<double()>& work, double /*what do_start returned*/) {
    return work();
  }

  // False for a communicator that only counts: its buffers are never touched.
  virtual bool moves_data() const { return true; }

  // Backends: P >= 2, arguments checked. Each returns the seconds spent waiting for other ranks.
  virtual double do_all_gather(const Group& group, const CollectiveCall& call, const void* in, void* out) = 0;
  virtual double do_all_gather_shared(const Group& group, const CollectiveCall& call, const Make& make,
                                      const Place& place, std::shared_ptr<void>& result);
  virtual double do_reduce_scatter(const Group& group, const CollectiveCall& call, const void* in,
                                   void* out) = 0;
  virtual double do_all_reduce(const Group& group, const CollectiveCall& call, void* data) = 0;
  virtual double do_all_to_all(const Group& group, const CollectiveCall& call, const void* in, void* out) = 0;
  virtual double do_ragged_all_to_all(const Group& group, const CollectiveCall& call,
                                      const RaggedSide& side) = 0;
  // Of a ragged exchange `side` has counts, not offsets.
  virtual double do_take(const Group& group, const CollectiveCall& call, const RaggedSide& side,
                         const Take& take);
  virtual double do_broadcast(const Group& group, const CollectiveCall& call, void* data) = 0;
  virtual double do_barrier(const Group& group, const CollectiveCall& call) = 0;

 private:
  static std::int64_t bytes_of(const TensorView& x) { return static_cast<std::int64_t>(x.bytes()); }
  static std::int64_t row_bytes(const TensorView& x) {
    std::int64_t bytes = static_cast<std::int64_t>(size_of(x.dtype()));
    for (std::size_t i = 1; i < x.rank(); ++i) bytes *= x.dim(i);
    return bytes;
  }
  static Take taking(const TensorView& in, const TakeView& take) {
    return [&in, &take](std::size_t index, const void* theirs) {
      take(index, TensorView::of_host(in.dtype(), theirs, in.shape()));
    };
  }

  friend class ProgressThread;
  // Checks the group; then the injected fault, if its place is here.
  void enter(const Group& group, CollectiveCall& call);
  void suffer(CollectiveCall& call);
  // Bytes of rows to others, the side checked.
  static std::int64_t ragged_bytes(const Group& group, const CollectiveCall& call, const RaggedSide& side);
  static void check_offsets(const Group& group, const CollectiveCall& call, const RaggedSide& side);
  std::shared_ptr<StartedCollective> start(std::shared_ptr<StartedCollective> started);
  void reduce_scatter_as(const Group& group, CollectiveCall call, const void* in, void* out);
  void all_reduce_as(const Group& group, CollectiveCall call, std::int64_t element_bytes, void* data);
  void record(const CollectiveCall& call, std::int64_t bytes, double wait_seconds);
  void count(const CollectiveCall& call, std::int64_t bytes, double wait_seconds);
  void log(const CollectiveCall& call, std::int64_t bytes, double wait_seconds) const;  // into the trace
  void copy_own(void* to, const void* from, std::int64_t bytes) const;

  std::map<std::tuple<std::string, std::string, std::string>, CollectiveCount> counts_;
  Position position_;
  std::optional<Fault> fault_;
  std::int64_t entered_ = 0;                         // when the running collective began, for the trace
  std::unique_ptr<ProgressThread> progress_thread_;  // first to end
};

// All ranks of the run.
Group everyone(const Communicator& comm);

}  // namespace switchyard

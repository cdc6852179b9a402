// CommBackend: moves bytes between ranks. One function carries out every kind of collective, so that a
// decorator (counts, traces, injected faults, overlap) has one function to wrap.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/device.h"
#include "core/gpu.h"
#include "parallel/comm/position.h"
#include "parallel/comm/process_group.h"

namespace switchyard {

enum class Collective {
  all_gather,
  reduce_scatter,
  all_reduce,
  all_to_all,
  ragged_all_to_all,
  broadcast,
  barrier,
  make_together,  // ranks of one process each write a part of one result; moves and counts no bytes
};
std::string_view name_of(Collective kind);

// The arguments of one collective on which all its ranks must agree.
struct CollectiveCall {
  Collective kind = Collective::barrier;
  std::string_view axis;
  std::string_view type = "bytes";  // element type of a reduction, "bytes a row" of a ragged exchange
  std::int64_t size = 0;            // bytes or elements per rank; bytes per row of a ragged exchange
  std::int64_t root = 0;            // group index of the root of a broadcast
  std::int64_t runs = 1;            // of a reduce-scatter: runs of a rank's part in the input
  bool operator==(const CollectiveCall&) const = default;
};
std::string to_string(const CollectiveCall& call);

// Rows sent to, or received from, each rank of a group: `counts[i]` rows at row `offsets[i]`.
struct RaggedRows {
  std::span<const std::int64_t> offsets, counts;
};

// One result shared by all ranks of a process. The first rank to arrive calls `make`; then every rank calls
// `place` on the result, to write its part. `place` must not throw.
struct SharedResult {
  std::function<std::shared_ptr<void>()> make;
  std::function<void(void* made)> place;
  std::shared_ptr<void> made;  // the result
};

// Called with the input of group rank `index`, in that rank's memory. It must not throw.
using TakeInput = std::function<void(std::size_t index, const void* in)>;

// One rank's operands in a collective.
struct Operands {
  const Device* device = nullptr;  // the device of `in` and `out`; null: the host
  const void* in = nullptr;
  void* out = nullptr;  // also the input of an all-reduce or a broadcast
  RaggedRows send{}, receive{};
  // For backends that read other ranks' memory, instead of `out`:
  const TakeInput* take = nullptr;  // all_to_all, ragged_all_to_all (counts without offsets)
  SharedResult* shared = nullptr;   // all_gather, make_together
};

// A collective in flight. It keeps alive all objects that the caller may release meanwhile.
struct StartedCollective {
  explicit StartedCollective(const ProcessGroup& members) : group(members) {}
  const ProcessGroup group;
  CollectiveCall call;  // its axis is the group's
  Operands operands;
  std::vector<std::int64_t> numbers;           // storage that the operands' rows point to
  std::vector<std::shared_ptr<void>> buffers;  // kept alive until the collective is done
  std::int64_t step = -1, layer = -1;          // the place where it was started
  const char* phase = "start";
  double end = 0;     // for a backend that only models time: the end time
  double waited = 0;  // seconds that start() waited for other ranks
  gpu::Moment over;   // for a backend between GPUs: reached at the end
  bool done = false;
  std::exception_ptr error;
};

// Returns the bytes that this rank sends to other ranks, counted per destination: all_gather bytes·(P-1),
// reduce_scatter count·size·(P-1), all_to_all bytes_per_rank·(P-1), ragged_all_to_all the rows to others,
// broadcast bytes·(P-1) at the root and 0 elsewhere, all_reduce the sum of
// a reduce_scatter and an all_gather of slices.
std::int64_t bytes_sent(const ProcessGroup& group, const CollectiveCall& call, const Operands& operands);

// Slice `index` of `count` elements cut into `parts` contiguous slices, of which the first ones are one
// element longer. All-reduce works slice by slice.
struct Slice {
  std::int64_t begin;
  std::int64_t end;
};
Slice slice_of(std::int64_t count, int parts, int index);

// One rank's side of the collectives. One thread uses it at a time.
class CommBackend {
 public:
  virtual ~CommBackend() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int process_of(int rank) const = 0;
  virtual Position& position() = 0;
  // Implements Communicator::shared().
  virtual std::shared_ptr<void> shared(const std::string& key,
                                       const std::function<std::shared_ptr<void>()>& make) = 0;
  // True when Operands::take and Operands::shared work.
  virtual bool reads_other_ranks() const { return false; }

  // Carries out a collective of several ranks; its arguments have been checked. Returns the seconds spent
  // waiting for other ranks.
  virtual double carry_out(const ProcessGroup& group, const CollectiveCall& call,
                           const Operands& operands) = 0;
  // Splits carry_out in two. Without overlap, finish() does all the work.
  virtual void start(const std::shared_ptr<StartedCollective>& /*started*/) {}
  virtual double finish(StartedCollective& started) {
    return carry_out(started.group, started.call, started.operands);
  }

  // Returns another backend of the same rank, whose collectives never mix with this one's; null: none.
  virtual std::unique_ptr<CommBackend> second_channel() { return nullptr; }
  // Called at once, on the progress thread, when a started collective fails;
  // by default finish() reports the failure.
  virtual void failed(const std::exception& /*failure*/) {}
};

// Forwards every call; the base of backends that add something to another backend.
class CommDecorator : public CommBackend {
 public:
  explicit CommDecorator(std::unique_ptr<CommBackend> inner) : inner_(std::move(inner)) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  int process_of(int rank) const override { return inner_->process_of(rank); }
  Position& position() override { return inner_->position(); }
  std::shared_ptr<void> shared(const std::string& key,
                               const std::function<std::shared_ptr<void>()>& make) override {
    return inner_->shared(key, make);
  }
  bool reads_other_ranks() const override { return inner_->reads_other_ranks(); }
  double carry_out(const ProcessGroup& group, const CollectiveCall& call, const Operands& operands) override {
    return inner_->carry_out(group, call, operands);
  }
  void start(const std::shared_ptr<StartedCollective>& started) override { inner_->start(started); }
  double finish(StartedCollective& started) override { return inner_->finish(started); }
  std::unique_ptr<CommBackend> second_channel() override { return inner_->second_channel(); }
  void failed(const std::exception& failure) override { inner_->failed(failure); }

  // Inserts another decorator right below this one.
  void insert_below(
      const std::function<std::unique_ptr<CommBackend>(std::unique_ptr<CommBackend>)>& decorate) {
    inner_ = decorate(std::move(inner_));
  }

 protected:
  CommBackend& inner() { return *inner_; }

 private:
  std::unique_ptr<CommBackend> inner_;
};

}  // namespace switchyard

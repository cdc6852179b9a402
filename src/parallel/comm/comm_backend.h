// CommBackend: what moves bytes between ranks. One function carries out every kind of collective, so that a
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
  make_together,  // ranks of one process write their parts of one result; moves and counts nothing
};
std::string_view name_of(Collective kind);

// What the ranks of one collective must agree on.
struct CollectiveCall {
  Collective kind = Collective::barrier;
  std::string_view axis;
  std::string_view type = "bytes";  // element type of a reduction, "bytes a row" of a ragged exchange
  std::int64_t size = 0;            // bytes or elements a rank, row bytes of a ragged exchange
  std::int64_t root = 0;            // group index of the root of a broadcast
  std::int64_t runs = 1;            // of a rank's part in the input of a reduce-scatter
  bool operator==(const CollectiveCall&) const = default;
};
std::string to_string(const CollectiveCall& call);

// Rows that go to, or come from, each rank of a group: `counts[i]` rows at row `offsets[i]`.
struct RaggedRows {
  std::span<const std::int64_t> offsets, counts;
};

// One result for all ranks of a process. `make` is called by the first rank to come; every rank then calls
// `place` on the result, to write its part. `place` must not throw.
struct SharedResult {
  std::function<std::shared_ptr<void>()> make;
  std::function<void(void* made)> place;
  std::shared_ptr<void> made;  // the result
};

// Called with the input of group rank `index` where it lies. It must not throw.
using TakeInput = std::function<void(std::size_t index, const void* in)>;

// One rank's memory in a collective.
struct Operands {
  const Device* device = nullptr;  // whose memory `in` and `out` are; null: the host's
  const void* in = nullptr;
  void* out = nullptr;  // of an all-reduce and a broadcast: also the input
  RaggedRows send{}, receive{};
  // Of backends that read other ranks' memory, in place of `out`:
  const TakeInput* take = nullptr;  // all_to_all, ragged_all_to_all (counts without offsets)
  SharedResult* shared = nullptr;   // all_gather, make_together
};

// A collective on its way. It keeps all that the caller may let go of meanwhile.
struct StartedCollective {
  explicit StartedCollective(const ProcessGroup& members) : group(members) {}
  const ProcessGroup group;
  CollectiveCall call;  // its axis is the group's
  Operands operands;
  std::vector<std::int64_t> numbers;           // that the operands' rows point to
  std::vector<std::shared_ptr<void>> buffers;  // kept alive until it is done
  std::int64_t step = -1, layer = -1;          // where it was started
  const char* phase = "start";
  double end = 0;     // of a backend that only counts time: when it is done
  double waited = 0;  // seconds that start() waited for other ranks
  gpu::Moment over;   // of a backend between GPUs: when it is done
  bool done = false;
  std::exception_ptr error;
};

// Bytes that this rank sends to other ranks, each destination counted: all_gather bytes·(P-1), reduce_scatter
// count·size·(P-1), all_to_all bytes_per_rank·(P-1), ragged_all_to_all the rows to others, broadcast
// bytes·(P-1) at the root and 0 elsewhere, all_reduce the sum of a reduce_scatter and an all_gather of
// slices.
std::int64_t bytes_sent(const ProcessGroup& group, const CollectiveCall& call, const Operands& operands);

// Part `index` of `count` elements cut into `parts` contiguous slices, the first ones one longer. All-reduce
// works slice by slice.
struct Slice {
  std::int64_t begin;
  std::int64_t end;
};
Slice slice_of(std::int64_t count, int parts, int index);

// One rank's side. Used by one thread at a time.
class CommBackend {
 public:
  virtual ~CommBackend() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int process_of(int rank) const = 0;
  virtual Position& position() = 0;
  // Communicator::shared().
  virtual std::shared_ptr<void> shared(const std::string& key,
                                       const std::function<std::shared_ptr<void>()>& make) = 0;
  // Whether `take` and `shared` of Operands work.
  virtual bool reads_other_ranks() const { return false; }

  // Carries out a collective of several ranks, whose arguments are checked. Returns the seconds spent waiting
  // for other ranks.
  virtual double carry_out(const ProcessGroup& group, const CollectiveCall& call,
                           const Operands& operands) = 0;
  // The same in two parts. Without overlap all is done at the end.
  virtual void start(const std::shared_ptr<StartedCollective>& /*started*/) {}
  virtual double finish(StartedCollective& started) {
    return carry_out(started.group, started.call, started.operands);
  }

  // Another backend of the same rank, whose collectives never meet those of this one; null: none.
  virtual std::unique_ptr<CommBackend> second_channel() { return nullptr; }
  // What a failure of a started collective does at once, on the progress thread; returning leaves it to
  // finish().
  virtual void failed(const std::exception& /*failure*/) {}
};

// Forwards everything; the base of backends that add something to another one.
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

  // Puts another decorator right below this one.
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

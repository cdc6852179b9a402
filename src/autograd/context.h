// Context: everything one rank owns, passed explicitly. State outside of it belongs to a thread (scratch of
// kernels, an instruction set forced by a test) or counts for the whole process.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "autograd/host_reads.h"
#include "core/fence.h"
#include "core/tensor.h"
#include "core/thread_pool.h"
#include "parallel/axis_rules.h"
#include "parallel/comm/communicator.h"
#include "parallel/mesh.h"

namespace switchyard {

class Array;
class Op;
class RematRegion;
class GathersAhead;
class HostMemory;
struct OffloadGroup;

// Observes every op that forward runs, in order.
class OpObserver {
 public:
  virtual ~OpObserver() = default;
  virtual void applied(const Op& op, std::span<const Array> inputs, std::span<const Array> outputs) = 0;
};

// The values that `plan` assumes where a run would read data.
struct Assumptions {
  double imbalance = 1;  // rows that arrive at this rank's experts, divided by the mean over ranks
};

// The layers of a rank, when a pipeline spreads them over the mesh axis `stage`. The ranks of one stage have
// a mesh without that axis and their own rank numbers; all code but the pipeline's sees only these. A stage
// has `repeats` blocks of layers: block b of a stage follows block b of the stage before, and block b + 1 of
// the first stage follows block b of the last.
struct Stage {
  int index = 0, count = 1;
  int repeats = 1;
  std::vector<int> ranks;                    // world rank of each rank of this stage; empty: the same
  std::vector<int> first_ranks, last_ranks;  // world ranks of the first and of the last stage
  ProcessGroup across;  // this rank's counterparts in all stages, under the name "stage"
  // The first stage has the embedding, the last stage has the head.
  bool is_first() const { return index == 0; }
  bool is_last() const { return index + 1 == count; }

  // One of all blocks, numbered in the order in which a microbatch passes them.
  struct Block {
    int index = 0, count = 1;
    bool is_first() const { return index == 0; }
    bool is_last() const { return index + 1 == count; }
  };
  Block block(int of_stage) const { return {of_stage * count + index, count * repeats}; }
};

struct Context {
  int rank = 0;  // in `mesh`
  const Mesh* mesh = nullptr;
  Stage stage;
  const AxisRules* rules = nullptr;
  Communicator* comm = nullptr;
  ThreadPool* pool = nullptr;
  Memory memory;  // where this rank's tensors are
  // Host memory for a GPU's tensors, null when the device is no GPU: holds values that remat offloads and the
  // optimizer state of optimizer_memory_host_offload (autograd/offload.h, train/update.h).
  std::shared_ptr<HostMemory> offload;
  std::weak_ptr<OffloadGroup> last_offloads;  // of the remat region that ended last
  HostReads host_reads;
  bool explicit_sharding = false;  // shard_mode=explicit: an implied reshard is an error
  bool grad_enabled = true;
  RematRegion* region = nullptr;  // innermost open remat region
  std::uint64_t next_node = 0;
  std::uint64_t next_parameters = 0;  // next id of a parameter set (models/parameters.h)
  std::string_view op;                // the running op, for counters
  const Assumptions* assumed = nullptr;
  OpObserver* observer = nullptr;
  std::optional<Fault> fault;     // a fault in this rank's numbers (Fault::Kind nan and flip), for tests
  GathersAhead* ahead = nullptr;  // starts gathers early; null: each runs when it is needed

  Tensor empty(DType dtype, const Shape& shape) const { return memory.empty(dtype, shape); }  // uninitialised
  Tensor zeros(DType dtype, const Shape& shape) const { return memory.zeros(dtype, shape); }

  bool suffers(Fault::Kind kind, std::string_view phase) const {
    return switchyard::suffers(fault, comm->position(), kind, phase);
  }
  TraceLog* trace() const { return comm == nullptr ? nullptr : comm->position().trace; }

  // True when tensors hold no data (core/memory_account.h) and the pool and the communicator only count. An
  // op that reads a value from its data must assume the value in this case.
  bool abstract() const { return assumed != nullptr; }

  // The ranks (of the communicator) that differ from this one only along `axes`. Created at the first call;
  // the reference is valid for the context's lifetime.
  const ProcessGroup& group(const Axes& axes) const {
    const auto [found, is_new] = groups_.try_emplace(axes);
    if (is_new) {
      ProcessGroup& group =
          found->second = {mesh->group(rank, axes), mesh->index_along(rank, axes), joined(axes)};
      for (int& member : group.ranks) {
        if (!stage.ranks.empty()) member = stage.ranks[static_cast<std::size_t>(member)];
      }
    }
    return found->second;
  }

  // On the first and the last stage of a pipeline: the group's ranks on both stages, as world ranks.
  const ProcessGroup& group_on_ends(const Axes& axes) const {
    const auto [found, is_new] = groups_on_ends_.try_emplace(axes);
    if (is_new) {
      ProcessGroup& group = found->second;
      for (const int member : mesh->group(rank, axes)) {
        const auto place = static_cast<std::size_t>(member);
        group.ranks.insert(group.ranks.end(), {stage.first_ranks[place], stage.last_ranks[place]});
      }
      std::ranges::sort(group.ranks);
      const auto me = std::ranges::find(group.ranks, stage.ranks[static_cast<std::size_t>(rank)]);
      group.index = static_cast<int>(me - group.ranks.begin());
      group.axis = axes.empty() ? "stage" : "stage+" + joined(axes);
    }
    return found->second;
  }

 private:
  mutable std::map<Axes, ProcessGroup> groups_, groups_on_ends_;
};

// Returns x in memory of the host: x itself, or a copy. Counted as a host read of `what`. On the abstract
// device there is no data: the result is what `assume` returns, a host tensor with x's dtype and shape.
template <typename Assume>
Tensor read_back(Context& context, const Tensor& x, std::string_view what, const Assume& assume) {
  context.host_reads.add(what);
  return x.abstract() ? assume() : to_host(x);
}

// While alive, the op `name` runs; `pass`: "forward", "backward",
// "recompute", "ahead" (prefetched), or "update".
class InsideOp {
 public:
  InsideOp(Context& context, std::string_view name, std::string_view pass)
      : context_(context),
        before_(context.op),
        span_(context.trace(), name, pass,
              context.trace() == nullptr ? -1 : context.comm->position().layer.load()) {
    context.op = name;
    exchange_running_op(name);
  }
  ~InsideOp() {
    context_.op = before_;
    exchange_running_op(before_);
  }
  InsideOp(const InsideOp&) = delete;
  InsideOp& operator=(const InsideOp&) = delete;

 private:
  Context& context_;
  std::string_view before_;
  const TraceSpan span_;
};

// Runs `work` as a part of the op `name`. When `work` accesses device
// memory from the host, the error names the op.
template <typename Work>
auto inside_op(Context& context, std::string_view name, std::string_view pass, const Work& work) {
  const InsideOp inside(context, name, pass);
  try {
    return work();
  } catch (const HostAccess& access) {
    fail_runtime("[{}] {}: {}", name, pass, access.what());
  }
}

// While alive, ops are not recorded in the graph.
class NoGrad {
 public:
  explicit NoGrad(Context& context) : context_(context), before_(context.grad_enabled) {
    context.grad_enabled = false;
  }
  ~NoGrad() { context_.grad_enabled = before_; }
  NoGrad(const NoGrad&) = delete;
  NoGrad& operator=(const NoGrad&) = delete;

 private:
  Context& context_;
  bool before_;
};

}  // namespace switchyard

// Context: everything one rank owns, passed explicitly. There is no global state.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/memory_account.h"
#include "core/thread_pool.h"
#include "dist/axis_rules.h"
#include "dist/comm/communicator.h"
#include "dist/mesh.h"

namespace switchyard {

class Array;
class Op;
class RematRegion;

// Is told of every op that forward runs, in order.
class OpObserver {
 public:
  virtual ~OpObserver() = default;
  virtual void applied(const Op& op, std::span<const Array> inputs, std::span<const Array> outputs) = 0;
};

// What `plan` assumes where a run would look at its data.
struct Assumptions {
  double imbalance = 1;  // rows that arrive at this rank's experts, over the mean of the ranks
};

struct Context {
  int rank = 0;
  const Mesh* mesh = nullptr;
  const AxisRules* rules = nullptr;
  Communicator* comm = nullptr;
  ThreadPool* pool = nullptr;
  bool explicit_sharding = false;  // shard_mode=explicit: an implied reshard is an error
  bool grad_enabled = true;
  RematRegion* region = nullptr;  // innermost open remat region
  std::uint64_t next_node = 0;
  Place place;  // kept up to date for those who count memory, work and collectives
  const Assumptions* assumed = nullptr;
  OpObserver* observer = nullptr;

  // Tensors hold no data (core/memory_account.h), the pool and the communicator only count. What a run reads
  // from its data, an op that reads it must assume here.
  bool abstract() const { return assumed != nullptr; }
  // A new part of the step: "forward", "backward", ...
  void enter(std::string_view phase) {
    place.phase = phase;
    comm->enter(phase);
  }

  // The ranks that differ from this one only along `axes`, and this rank's place among them.
  Group group(std::span<const std::string> axes) const {
    return {mesh->group(rank, axes), mesh->index_along(rank, axes)};
  }
};

// While alive, the rank is inside the op `name`, made in decoder layer `layer`.
class InsideOp {
 public:
  InsideOp(Context& context, std::string_view name, std::int64_t layer)
      : context_(context), before_(context.place) {
    context.place.op = name;
    context.place.layer = layer;
  }
  ~InsideOp() { context_.place = before_; }
  InsideOp(const InsideOp&) = delete;
  InsideOp& operator=(const InsideOp&) = delete;

 private:
  Context& context_;
  Place before_;
};

// While alive, ops are not recorded.
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

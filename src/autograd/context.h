// Context: everything one rank owns, passed explicitly. There is no global state.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/thread_pool.h"
#include "dist/axis_rules.h"
#include "dist/comm/communicator.h"
#include "dist/mesh.h"

namespace switchyard {

class RematRegion;

// The layers that a rank runs, where a pipeline spreads them over the mesh axis `stage`. The ranks of one
// stage have a mesh without that axis and rank numbers of their own; everything but the pipeline itself sees
// only them.
struct Stage {
  int index = 0, count = 1;
  std::vector<int> ranks;  // world rank of every rank of this stage; empty: the same number
  std::vector<int> peers;  // world ranks at this rank's place in every stage
  bool is_first() const { return index == 0; }
  bool is_last() const { return index + 1 == count; }
  Group across() const { return {peers, index}; }
};

struct Context {
  int rank = 0;  // in `mesh`
  const Mesh* mesh = nullptr;
  Stage stage;
  const AxisRules* rules = nullptr;
  Communicator* comm = nullptr;
  ThreadPool* pool = nullptr;
  bool explicit_sharding = false;  // shard_mode=explicit: an implied reshard is an error
  bool grad_enabled = true;
  RematRegion* region = nullptr;  // innermost open remat region
  std::uint64_t next_node = 0;

  // The ranks (of the communicator) that differ from this one only along `axes`, and this rank's place among
  // them.
  Group group(std::span<const std::string> axes) const {
    Group group{mesh->group(rank, axes), mesh->index_along(rank, axes)};
    for (int& member : group.ranks) {
      if (!stage.ranks.empty()) member = stage.ranks[static_cast<std::size_t>(member)];
    }
    return group;
  }
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

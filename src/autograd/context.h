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

  // The ranks that differ from this one only along `axes`, and this rank's place among them.
  Group group(std::span<const std::string> axes) const {
    return {mesh->group(rank, axes), mesh->index_along(rank, axes)};
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

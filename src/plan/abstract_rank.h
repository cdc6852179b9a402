// AbstractRank: rank 0 of a mesh of any size in an abstract context; one per thread at a time.
#pragma once

#include <memory>

#include "autograd/ahead.h"
#include "autograd/context.h"
#include "config/config.h"
#include "dist/comm/abstract.h"
#include "train/session.h"

namespace switchyard {

class AbstractRank {
 public:
  // Work goes to `counter`, transfers are timed by `clock`; `workspace` as for ThreadPool.
  AbstractRank(const Config& config, const Mesh& mesh, WorkCounter& counter, bool workspace,
               int ranks_per_process, TransferClock& clock, double imbalance)
      : account_(std::make_shared<MemoryAccount>(true)),
        scope_(account_),
        mesh_(stage_mesh(mesh)),
        rules_(config.axis_rules(), mesh_),
        assumed_{imbalance},
        communicator_(0, mesh.size(), ranks_per_process, clock),
        pool_(counter, workspace) {
    context_.stage = stage_of(mesh, 0);  // rank 0 of the run is rank 0 of its stage
    context_.mesh = &mesh_;
    context_.rules = &rules_;
    context_.comm = &communicator_;
    context_.pool = &pool_;
    context_.assumed = &assumed_;
    context_.explicit_sharding = config.get_string("shard_mode") == "explicit";
    if (overlaps_communication(config, communicator_)) context_.ahead = &ahead_;
    account_->watch([this] { return place(); });
  }
  AbstractRank(const AbstractRank&) = delete;
  AbstractRank& operator=(const AbstractRank&) = delete;

  Context& context() { return context_; }
  MemoryAccount& account() { return *account_; }
  AxisRules& rules() { return rules_; }
  Place place() {
    const Position& position = communicator_.position();
    return {position.phase.load(), context_.op, position.layer.load()};
  }

 private:
  std::shared_ptr<MemoryAccount> account_;
  AccountScope scope_;
  Mesh mesh_;
  AxisRules rules_;
  Assumptions assumed_;
  AbstractCommunicator communicator_;
  ThreadPool pool_;
  GathersAhead ahead_;
  Context context_;
};

}  // namespace switchyard

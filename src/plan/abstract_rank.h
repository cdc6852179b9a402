// AbstractRank: rank 0 of a mesh of any size in an abstract context; one per thread at a time.
#pragma once

#include <memory>

#include "autograd/context.h"
#include "config/config.h"
#include "dist/comm/abstract.h"

namespace switchyard {

class AbstractRank {
 public:
  // Work goes to `counter`, transfers are timed by `seconds`; `workspace` as for ThreadPool.
  AbstractRank(const Config& config, const Mesh& mesh, WorkCounter& counter, bool workspace,
               AbstractCommunicator::Seconds seconds, double imbalance)
      : account_(std::make_shared<MemoryAccount>(true)),
        scope_(account_),
        rules_(config.axis_rules(), mesh),
        assumed_{imbalance},
        communicator_(0, mesh.size(), std::move(seconds)),
        pool_(counter, workspace) {
    context_.mesh = &mesh;
    context_.rules = &rules_;
    context_.comm = &communicator_;
    context_.pool = &pool_;
    context_.assumed = &assumed_;
    account_->watch(&context_.place);
  }
  AbstractRank(const AbstractRank&) = delete;
  AbstractRank& operator=(const AbstractRank&) = delete;

  Context& context() { return context_; }
  MemoryAccount& account() { return *account_; }
  AxisRules& rules() { return rules_; }

 private:
  std::shared_ptr<MemoryAccount> account_;
  AccountScope scope_;
  AxisRules rules_;
  Assumptions assumed_;
  AbstractCommunicator communicator_;
  ThreadPool pool_;
  Context context_;
};

}  // namespace switchyard

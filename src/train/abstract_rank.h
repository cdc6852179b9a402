// AbstractRank: a rank of a mesh of any size in an abstract context; at most one per thread at a time.
#pragma once

#include <memory>
#include <optional>

#include "autograd/ahead.h"
#include "autograd/context.h"
#include "config/config.h"
#include "core/current_memory.h"
#include "core/offload.h"
#include "engine/session.h"
#include "kernels/cuda/planned.h"
#include "kernels/registry/proofs.h"
#include "parallel/comm/abstract.h"
#include "parallel/comm/communicator.h"

namespace switchyard {

// Counts no work and no transfers, for callers that do not need costs.
class NoCosts : public WorkCounter, public TransferClock {
 public:
  void count(const Work&) override {}
  double transfer(const Transfer&) override { return 0; }
  double start(const Transfer&) override { return 0; }
  double wait(double) override { return 0; }
};

class AbstractRank {
 public:
  // The first rank of a stage (rank 0 of the run without a pipeline). `counter` counts
  // work, `clock` times transfers, `workspace` is as for ThreadPool. `gpu_major`: the
  // rank is a GPU of this compute capability and offloads as a GPU does.
  AbstractRank(const Config& config, const Mesh& mesh, int stage, WorkCounter& counter, WorkspaceOf workspace,
               int ranks_per_process, TransferClock& clock, double imbalance, int gpu_major = 0)
      : device_(workspace == WorkspaceOf::gpu ? Device::abstract_gpu() : Device::abstract()),
        account_(std::make_shared<MemoryAccount>()),
        scope_(Memory(device_, account_)),
        mesh_(stage_mesh(mesh)),
        rules_(config.axis_rules(), mesh_),
        assumed_{imbalance},
        communicator_(std::make_unique<AbstractBackend>(first_rank(config, mesh, stage), mesh.size(),
                                                        ranks_per_process, clock)),
        pool_(counter, workspace) {
    if (workspace == WorkspaceOf::gpu) {
      gpu_.emplace(gpu_major);
      registry::take_unproven_rows(config.get_string("gpu_kernels") == "all" ||
                                   config.get_string("device") == "cuda_emulated");
    }
    context_.stage = stage_of(config, mesh, communicator_.rank());  // this rank is that stage's rank 0
    context_.mesh = &mesh_;
    context_.rules = &rules_;
    context_.comm = &communicator_;
    context_.pool = &pool_;
    context_.memory = Memory(device_, account_);
    if (gpu_major > 0) context_.offload = std::make_shared<HostMemory>(context_.memory);
    communicator_.use_device(device_);
    context_.assumed = &assumed_;
    context_.explicit_sharding = config.get_string("shard_mode") == "explicit";
    if (starts_ahead(config, context_)) context_.ahead = &ahead_;
    account_->watch([this] { return place(); });
  }
  AbstractRank(const AbstractRank&) = delete;
  AbstractRank& operator=(const AbstractRank&) = delete;

  Context& context() { return context_; }
  MemoryAccount& account() { return *account_; }
  AxisRules& rules() { return rules_; }
  // The kernels that a GPU would have started since the rank was made; only where the workspace is a GPU's.
  std::int64_t gpu_kernels() const { return gpu_ ? gpu_->kernels() : 0; }
  Place place() {
    const Position& position = communicator_.position();
    return {position.phase.load(), context_.op, position.layer.load()};
  }

 private:
  static int first_rank(const Config& config, const Mesh& mesh, int stage) {
    const Stage first = stage_of(config, mesh, 0);
    return stage == 0 ? 0 : first.across.ranks[static_cast<std::size_t>(stage)];
  }

  Device& device_;
  std::optional<gpu::PlannedGpu> gpu_;
  std::shared_ptr<MemoryAccount> account_;
  MemoryScope scope_;
  Mesh mesh_;
  AxisRules rules_;
  Assumptions assumed_;
  Communicator communicator_;
  ThreadPool pool_;
  GathersAhead ahead_;
  Context context_;
};

}  // namespace switchyard

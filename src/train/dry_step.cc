#include "train/dry_step.h"

#include "train/abstract_rank.h"

namespace switchyard {
Batch abstract_batch(const BatchSizes& sizes) {
  const Memory nowhere(Device::abstract(), nullptr);
  const auto tokens = [&] { return nowhere.empty(DType::i32, {sizes.step, sizes.sequence}); };
  return {tokens(), tokens(), tokens(), tokens(), tokens()};
}

void dry_step(const ModelOnMesh& model, const TrainConfig& training, const BatchSizes& sizes) {
  for (int stage = 0; stage < model.mesh.axis_size("stage"); ++stage) {
    NoCosts costs;
    AbstractRank rank(model.config, model.mesh, stage, costs, WorkspaceOf::none, model.mesh.size(), costs, 1);
    Context& context = rank.context();
    Trainer trainer(context, model.model, training, model.create(context));
    trainer.step(0, abstract_batch(sizes));
  }
}

}  // namespace switchyard

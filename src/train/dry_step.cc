#include "train/dry_step.h"

#include "train/abstract_rank.h"

namespace switchyard {
Batch abstract_batch(const BatchSizes& sizes) {
  const Memory nowhere(Device::abstract(), nullptr);
  const auto tokens = [&] { return nowhere.empty(DType::i32, {sizes.step, sizes.sequence}); };
  return {tokens(), tokens(), tokens(), tokens(), tokens()};
}

void dry_step(const Config& config, const ModelConfig& model, const TrainConfig& training, const Mesh& mesh,
              const BatchSizes& sizes) {
  for (int stage = 0; stage < mesh.axis_size("stage"); ++stage) {
    NoCosts costs;
    AbstractRank rank(config, mesh, stage, costs, WorkspaceOf::none, mesh.size(), costs, 1);
    Context& context = rank.context();
    Trainer trainer(context, model, training,
                    Parameters::create(context, stage_specs(parameter_specs(model), context.stage, model),
                                       model.init_seed, nullptr, nullptr));
    trainer.step(0, abstract_batch(sizes));
  }
}

}  // namespace switchyard

// A steady training step takes its tensors from memory that the steps before gave back.
#include <gtest/gtest.h>

#include "config/config.h"
#include "core/tensor.h"
#include "data/dataset.h"
#include "train/trainer.h"

namespace switchyard {
namespace {

TEST(SteadyMemory, StepsAfterTheSecondTakeNoNewMemory) {
  const std::vector<std::string> arguments{"decoder_block=mixtral",
                                           "base_emb_dim=64",
                                           "base_num_decoder_layers=2",
                                           "num_experts=4",
                                           "num_experts_per_tok=2",
                                           "base_mlp_dim=128",
                                           "base_moe_mlp_dim=128",
                                           "base_num_query_heads=4",
                                           "base_num_kv_heads=2",
                                           "head_dim=16",
                                           "vocab_size=512",
                                           "per_device_batch_size=4",
                                           "max_target_length=256",
                                           "dtype=bfloat16",
                                           "weight_dtype=bfloat16",
                                           "opt_type=adamw",
                                           "steps=6",
                                           "dataset_type=synthetic"};
  const Config config = Config::from_args(arguments);
  const Mesh mesh = mesh_from_config(config);
  const ModelConfig model = model_config(config);
  const BatchSizes sizes = batch_sizes(config, mesh);
  std::vector<std::size_t> extents;
  run_session(config, mesh, [&](Context& context) {
    Trainer trainer(context, model, train_config(config, model, 1),
                    Parameters::create(context, parameter_specs(model), 0, nullptr, nullptr));
    const Batch batch = make_synthetic(sizes.step, sizes.sequence, model.vocab)->read(0, sizes.step);
    for (int step = 0; step < 6; ++step) {
      trainer.step(step, batch);
      extents.push_back(memory_extent());
    }
  });
  for (std::size_t step = 2; step < extents.size(); ++step)
    EXPECT_EQ(extents[step], extents[1]) << "step " << step;
}

}  // namespace
}  // namespace switchyard

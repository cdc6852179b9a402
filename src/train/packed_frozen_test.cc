// Tests training with packed frozen weights: it equals training with their dequantized values.
#include <gtest/gtest.h>

#include "config/config.h"
#include "core/error.h"
#include "data/dataset.h"
#include "engine/initial_weights.h"
#include "engine/session.h"
#include "kernels/packed/packed_weights.h"
#include "models/packed_parameters.h"
#include "train/trainer.h"

namespace switchyard {
namespace {

// Three of the four steps are taken: in the fourth, scores are so close that a token chooses other experts.
Config packed_config(const std::vector<std::string>& more) {
  std::vector<std::string> arguments{"model_name=deepseek3-tiny", "max_target_length=32", "dtype=float32",
                                     "weight_dtype=float32", "steps=4", "warmup_steps_fraction=0",
                                     "dataset_type=synthetic", "per_device_batch_size=2",
                                     // AdamW's first steps are signs: a gradient near 0 that is rounded
                                     // otherwise moves its weight the other way.
                                     "opt_type=sgd", "learning_rate=0.3"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return Config::from_args(arguments);
}

// The losses of steps on one batch. `unpacked`: frozen weights are the values of their blocks.
std::vector<double> losses(const Config& config, bool unpacked, int* packed = nullptr) {
  const Mesh mesh = mesh_from_config(config);
  const ModelConfig model = model_config(config);
  std::vector<std::string> notes;
  const std::vector<ParameterSpec> specs = specs_to_train(config, model, &notes);
  const auto count =
      std::count_if(specs.begin(), specs.end(), [](const ParameterSpec& s) { return is_packed(s.dtype); });
  if (packed != nullptr) *packed = static_cast<int>(count);
  const BatchSizes sizes = batch_sizes(config, mesh);
  std::vector<double> result;
  run_session(config, mesh, [&](Context& context) {
    Parameters parameters = Parameters::create_from_blocks(context, specs, model.init_seed, nullptr, nullptr);
    if (unpacked) {
      std::vector<ParameterSpec> dense = specs;
      for (ParameterSpec& spec : dense) {
        if (is_packed(spec.dtype)) spec = dense_spec(spec, DType::f32);
      }
      const Parameters::FillBlock values = [&](const ParameterSpec& spec, const Box&) {
        const Tensor& blocks = parameters[spec.name].tensor();
        if (!is_packed(blocks.dtype())) return Tensor();
        const auto at =
            std::find_if(specs.begin(), specs.end(), [&](const auto& s) { return s.name == spec.name; });
        const std::size_t inputs = at->matrix.stack + at->matrix.inputs;
        std::int64_t rows = 1;
        for (std::size_t i = 0; i < inputs; ++i) rows *= blocks.dim(i);
        const std::int64_t columns = blocks.size() / rows;
        const Tensor out(DType::f32, spec.shape);
        unpack_weights(*context.pool,
                       {blocks.view().reshaped({rows, columns}),
                        out.view().reshaped({rows * block_inputs(blocks.dtype()), columns * kBlockOutputs})});
        return out;
      };
      parameters = Parameters::create_from_blocks(context, dense, model.init_seed, values, nullptr);
    }
    Trainer trainer(context, model, train_config(config, model, 1), std::move(parameters));
    const auto data = make_synthetic(sizes.step, sizes.sequence, model.vocab);
    for (int step = 0; step < 3; ++step) {
      const StepResult done = trainer.step(step, data->read(0, sizes.step));
      if (context.comm->rank() == 0) result.push_back(done.lm_loss);
    }
  });
  return result;
}

TEST(PackedFrozenWeights, TheRestTrains) {
  for (const char* format : {"int8", "int4"}) {
    for (const char* mask : {"attention,head,norm,embedding", "moe[.]gate,embedding,norm"}) {
      SCOPED_TRACE(std::string(format) + " " + mask);
      const Config config = packed_config(
          {std::string("weight_format=") + format, std::string("trainable_parameters_mask=") + mask});
      int packed = 0;
      const std::vector<double> of_blocks = losses(config, false, &packed), of_values = losses(config, true);
      EXPECT_GT(packed, 3);
      ASSERT_EQ(of_blocks.size(), 3u);
      EXPECT_LT(of_blocks.back(), of_blocks.front() - 0.05);
      for (std::size_t i = 0; i < of_blocks.size(); ++i) EXPECT_NEAR(of_blocks[i], of_values[i], 5e-5) << i;
    }
  }
}

TEST(PackedFrozenWeights, TrainOnAMesh) {
  const std::vector<std::string> keys{
      "weight_format=int8", "trainable_parameters_mask=attention,norm,embedding", "per_device_batch_size=2"};
  std::vector<std::string> split = keys;
  split.insert(split.end(), {"ranks=2", "ici_expert_parallelism=2", "per_device_batch_size=1"});
  const std::vector<double> one = losses(packed_config(keys), false),
                            two = losses(packed_config(split), false);
  ASSERT_EQ(one.size(), two.size());
  for (std::size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(one[i], two[i], 5e-5) << i;
}

TEST(PackedFrozenWeights, TrainedOnesAreRefused) {
  std::vector<std::string> notes;
  const Config config = packed_config({"weight_format=int8"});
  EXPECT_THROW(specs_to_train(config, model_config(config), &notes), Error);
  std::vector<ParameterSpec> specs = parameter_specs(model_config(config));
  EXPECT_NO_THROW(require_packed_frozen(specs));
  EXPECT_THROW(require_packed_frozen(packed_specs(specs, DType::packed_int8, &notes)), Error);
}

}  // namespace
}  // namespace switchyard

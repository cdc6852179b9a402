// A step that is not finite says what of it was so first.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <optional>
#include <string>

#include "config/config.h"
#include "data/dataset.h"
#include "engine/session.h"
#include "train/trainer.h"

namespace switchyard {
namespace {

// What a step says whose weights `spoil` has changed before.
StepResult step_after_spoiling(const std::function<void(const Parameters&)>& spoil,
                               const std::vector<std::string>& more = {}, int bad_before = 0,
                               const std::optional<Fault>& fault = {}) {
  std::vector<std::string> arguments{"decoder_block=mixtral",
                                     "base_emb_dim=32",
                                     "base_num_decoder_layers=3",
                                     "num_experts=4",
                                     "num_experts_per_tok=2",
                                     "base_mlp_dim=32",
                                     "base_num_query_heads=2",
                                     "base_num_kv_heads=1",
                                     "head_dim=16",
                                     "vocab_size=64",
                                     "max_target_length=16",
                                     "weight_dtype=float32",
                                     "dtype=float32",
                                     "per_device_batch_size=1",
                                     "dataset_type=synthetic",
                                     "learning_rate=0.01",
                                     "steps=9",
                                     "load_balance_loss_weight=0.01",
                                     "abort_on_nan_loss=false"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  const Config config = Config::from_args(arguments);
  const Mesh mesh = mesh_from_config(config);
  const ModelConfig model = model_config(config);
  const BatchSizes sizes = batch_sizes(config, mesh);
  StepResult result;
  run_session(config, mesh, [&](Context& context) {
    if (fault) context.fault = *fault;
    Trainer trainer(context, model, train_config(config, model, context.stage.count),
                    Parameters::create(context, parameter_specs(model), 0, nullptr, nullptr));
    spoil(trainer.parameters());
    const auto data = make_synthetic(sizes.step, sizes.sequence, model.vocab);
    for (int i = 0; i <= bad_before; ++i) {
      StepResult step = trainer.step(i, BatchRows(*data, 0, sizes.step, sizes.sequence));
      if (context.comm->rank() == 0) result = std::move(step);
    }
  });
  return result;
}

std::function<void(const Parameters&)> fill_weight(const std::string& name, float value) {
  return [=](const Parameters& parameters) {
    if (!parameters.contains(name)) return;
    const Tensor host = to_host(parameters[name].tensor());
    for (float& v : host.span<float>()) v = value;
    copy(host.view(), parameters[name].tensor().view());
  };
}

TEST(NotFinite, SaysWhereItBegan) {
  for (const std::vector<std::string>& keys : std::vector<std::vector<std::string>>{
           {}, {"ranks=2", "ici_expert_parallelism=2"}, {"device=cuda_emulated"}}) {
    const StepResult overflow = step_after_spoiling(fill_weight("layers.1.moe.wo", 3e38f), keys);
    EXPECT_NE(overflow.bad.find("; not finite first: the output of layer 1"), std::string::npos)
        << overflow.bad;
    EXPECT_TRUE(std::isnan(overflow.loss) ? !std::signbit(overflow.loss) : std::isinf(overflow.loss));
    const StepResult weights = step_after_spoiling(fill_weight("layers.2.moe.gate", NAN), keys);
    EXPECT_NE(weights.bad.find("; not finite first: the weights"), std::string::npos) << weights.bad;
    EXPECT_FALSE(std::signbit(weights.loss) || std::signbit(weights.lm_loss) ||
                 std::signbit(weights.balance_loss));
  }
}

TEST(NotFinite, IsSaidOnceOfStepsInARow) {
  const StepResult second = step_after_spoiling(fill_weight("layers.1.moe.wo", 3e38f), {}, 1);
  EXPECT_FALSE(second.bad.empty());
  EXPECT_EQ(second.bad.find("not finite first"), std::string::npos) << second.bad;
}

TEST(NotFinite, GradientsAlone) {
  const StepResult result =
      step_after_spoiling([](const Parameters&) {}, {}, 0,
                          Fault{.kind = Fault::Kind::nan, .rank = 0, .step = 0, .phase = "gradients"});
  EXPECT_NE(result.bad.find("the gradient is not a number; not finite first: the gradients of "),
            std::string::npos)
      << result.bad;
}

}  // namespace
}  // namespace switchyard

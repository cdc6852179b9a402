#include "train/bad_steps.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "data/dataset.h"
#include "train/trainer.h"

namespace switchyard {
namespace {

TEST(BadSteps, WhatIsNotFiniteIsBad) {
  BadSteps steps(BadStepConfig{});
  EXPECT_EQ(steps.judge(0, {.loss = 3, .gradient_norm = 1}), "");
  EXPECT_EQ(steps.judge(1, {.loss = NAN, .gradient_norm = 1}), "step 1 skipped: the loss is not a number");
  EXPECT_EQ(steps.judge(2, {.loss = INFINITY, .gradient_norm = NAN}), "step 2 skipped: the loss is infinite");
  EXPECT_EQ(steps.judge(3, {.loss = 3, .gradient_norm = INFINITY}),
            "step 3 skipped: the gradient is infinite");
  EXPECT_EQ(steps.judge(4, {.loss = 1e30, .gradient_norm = 1e30}), "");  // spikes are not looked for
  EXPECT_EQ(steps.skipped(), 3);
}

TEST(BadSteps, SpikesStandOutFromTheStepsBefore) {
  BadSteps steps({.skip_spikes = true, .spike_interval = 4, .spike_factor = 2});
  const double losses[] = {9, 1, 2, 3, 2};
  for (int i = 0; i < 5; ++i)
    EXPECT_EQ(steps.judge(i, {.loss = losses[i], .gradient_norm = 1.1 - 0.1 * (i % 2)}), "") << i;
  // 1, 2, 3, 2 have mean 2 and sample deviation sqrt(2/3); the 9 is forgotten.
  EXPECT_EQ(steps.judge(5, {.loss = 3.6, .gradient_norm = 1}), "");
  EXPECT_EQ(steps.judge(6, {.loss = 9, .gradient_norm = 1}), "step 6 skipped: the loss 9 is a spike");
  EXPECT_EQ(steps.judge(7, {.loss = 2, .gradient_norm = 7}),
            "step 7 skipped: the gradient norm 7 is a spike");
  EXPECT_EQ(steps.judge(8, {.loss = 9, .gradient_norm = 1}), "");  // by now usual
}

// Of the interval half must be there: a warm-up's first steps are all alike, and any rise would stand out.
TEST(BadSteps, SpikesAreNotLookedForInTheFirstSteps) {
  BadSteps steps({.skip_spikes = true, .spike_interval = 128, .spike_factor = 6});
  for (int i = 0; i < 63; ++i)
    EXPECT_EQ(steps.judge(i, {.loss = i == 2 ? 9.0 : 1.0, .gradient_norm = 1}), "") << i;
  EXPECT_EQ(steps.judge(63, {.loss = 9, .gradient_norm = 1}), "step 63 skipped: the loss 9 is a spike");
}

TEST(BadSteps, SpikesOfTheNormAreThoseAfterClipping) {
  BadSteps steps({.skip_spikes = true, .spike_interval = 4, .spike_factor = 2});
  for (int i = 0; i < 8; ++i)
    EXPECT_EQ(steps.judge(i, {.loss = 1, .gradient_norm = i == 6 ? 50.0 : 1.0, .clipped_norm = 1}), "") << i;
}

TEST(BadSteps, AStateRestoredJudgesAlike) {
  const BadStepConfig config{.most_in_a_row = 2, .skip_spikes = true, .spike_interval = 8};
  BadSteps one(config), other(config);
  for (int i = 0; i < 20; ++i) one.judge(i, {.loss = std::sin(i), .gradient_norm = i % 7 == 5 ? NAN : 1});
  other.restore(bad_step_state(to_json(one.state())));
  EXPECT_EQ(other.skipped(), one.skipped());
  for (const double loss : {1.0, 5.0, -3.0, 5.0}) {
    EXPECT_EQ(other.judge(20, {.loss = loss, .gradient_norm = 1}),
              one.judge(20, {.loss = loss, .gradient_norm = 1}));
  }
}

std::string error_of(const BadSteps& steps, std::int64_t step, double loss) {
  try {
    steps.stop_if_hopeless(step, loss);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::runtime);
    return error.what();
  }
  return "";
}

TEST(BadSteps, TooManyInARowStopTheRun) {
  BadSteps steps({.nan_loss_aborts = false, .most_in_a_row = 3});
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(error_of(steps, i, NAN), "");
    steps.judge(i, {.loss = NAN});
  }
  EXPECT_EQ(error_of(steps, 2, NAN),
            "[train] steps 0 to 2 were bad, the last because the loss is not a number: expected fewer than "
            "max_consecutive_bad_steps=3 in a row; lower learning_rate, or look at the data");
  steps.judge(3, {.loss = 1, .gradient_norm = 1});
  EXPECT_EQ(error_of(steps, 3, 1), "");
}

TEST(BadSteps, ALossThatAbortsDoesSoAtOnce) {
  const BadSteps steps{BadStepConfig{}};
  EXPECT_EQ(error_of(steps, 4, NAN), "[train] loss is not a number at step 4 (abort_on_nan_loss=true)");
  EXPECT_EQ(error_of(steps, 4, -INFINITY), "[train] loss is infinite at step 4 (abort_on_inf_loss=true)");
}

// All weights, and what a few steps with a fault on one rank left of them.
struct Outcome {
  std::vector<float> weights;
  std::vector<StepResult> steps;
};
Outcome train(const std::vector<std::string>& keys, int steps, const std::optional<Fault>& fault,
              std::int64_t left_out = -1) {
  std::vector<std::string> arguments{"decoder_block=deepseek",
                                     "base_emb_dim=32",
                                     "base_num_decoder_layers=2",
                                     "num_experts=4",
                                     "num_experts_per_tok=2",
                                     "base_mlp_dim=32",
                                     "base_moe_mlp_dim=32",
                                     "base_num_query_heads=2",
                                     "base_num_kv_heads=2",
                                     "head_dim=16",
                                     "attention_type=mla",
                                     "routed_score_func=sigmoid",
                                     "kv_lora_rank=16",
                                     "q_lora_rank=0",
                                     "qk_nope_head_dim=8",
                                     "qk_rope_head_dim=8",
                                     "v_head_dim=8",
                                     "vocab_size=64",
                                     "max_target_length=16",
                                     "dtype=float32",
                                     "weight_dtype=float32",
                                     "routed_bias=true",
                                     "routed_bias_update_rate=0.01",
                                     "steps=6",
                                     "dataset_type=synthetic",
                                     "learning_rate=0.01",
                                     "shared_experts=1"};
  arguments.insert(arguments.end(), keys.begin(), keys.end());
  const Config config = Config::from_args(arguments);
  const Mesh mesh = mesh_from_config(config);
  const ModelConfig model = model_config(config);
  const BatchSizes sizes = batch_sizes(config, mesh);
  Outcome outcome;
  std::vector<std::string> bad(static_cast<std::size_t>(mesh.size()));
  run_session(config, mesh, [&](Context& context) {
    if (fault && fault->rank == context.comm->rank()) context.fault = *fault;
    Trainer trainer(context, model, train_config(config, model, 1),
                    Parameters::create(context, parameter_specs(model), 0, nullptr, nullptr));
    const auto data = make_synthetic(sizes.step, sizes.sequence, model.vocab);
    for (int step = 0; step < steps; ++step) {
      if (step == left_out) continue;
      StepResult result = trainer.step(step, data->read(step * sizes.step, sizes.step));
      bad[static_cast<std::size_t>(context.comm->rank())] += result.bad;
      if (context.comm->rank() == 0) outcome.steps.push_back(std::move(result));
    }
    if (context.comm->rank() != 0) return;
    for (const Parameter& p : trainer.parameters().all()) {
      const Tensor whole = p.array.tensor().cast(DType::f32);
      outcome.weights.insert(outcome.weights.end(), whole.span<float>().begin(), whole.span<float>().end());
    }
  });
  for (const std::string& text : bad) EXPECT_EQ(text, bad[0]);
  return outcome;
}

// A skipped step leaves weights, optimizer state and router bias as if it had never been.
TEST(BadSteps, ASkippedStepChangesNothingOnAnyRank) {
  const std::vector<std::vector<std::string>> layouts{
      {"per_device_batch_size=4"},
      {"ranks=4", "ici_fsdp_parallelism=2", "ici_expert_parallelism=2", "per_device_batch_size=1"}};
  for (const std::vector<std::string>& keys : layouts) {
    for (const std::string phase : {"forward", "gradients"}) {
      const Fault fault{.kind = Fault::Kind::nan, .rank = keys.size() > 1 ? 3 : 0, .step = 2, .phase = phase};
      const Outcome with = train(keys, 5, fault), without = train(keys, 5, std::nullopt, 2);
      EXPECT_EQ(with.weights, without.weights) << keys[0] << " " << phase;
      ASSERT_EQ(with.steps.size(), 5u);
      EXPECT_TRUE(
          with.steps[2].bad == "step 2 skipped: the loss is not a number" ||
          with.steps[2].bad.starts_with("step 2 skipped: the gradient is not a number; not finite first: "))
          << phase << ": " << with.steps[2].bad;
      EXPECT_EQ(with.steps[2].bad.find("gradient") == std::string::npos, phase == "forward");
      EXPECT_EQ(with.steps[2].param_norm, with.steps[1].param_norm);
      EXPECT_EQ(with.steps[4].skipped, 1);
      for (const int step : {0, 1, 3, 4}) EXPECT_EQ(with.steps[static_cast<std::size_t>(step)].bad, "");
      EXPECT_NE(with.weights, train(keys, 5, std::nullopt).weights);
    }
  }
}

}  // namespace
}  // namespace switchyard

// Steps on pairs of answers: the same loss, rewards and gradients however the batch is split, and what is
// refused with them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "config/config.h"
#include "config/test_support.h"
#include "core/error.h"
#include "core/testing.h"
#include "data/dataset.h"
#include "engine/session.h"
#include "train/trainer.h"

namespace switchyard {
namespace {

constexpr std::int64_t kPairRows = 8, kPairLength = 16, kPairVocabulary = 32;

Config pairs_config(const std::vector<std::string>& more) {
  std::vector<std::string> arguments{"decoder_block=mixtral",
                                     "base_emb_dim=16",
                                     "base_num_decoder_layers=2",
                                     "num_experts=4",
                                     "num_experts_per_tok=2",
                                     "base_mlp_dim=16",
                                     "base_moe_mlp_dim=16",
                                     "base_num_query_heads=2",
                                     "base_num_kv_heads=2",
                                     "head_dim=8",
                                     "dtype=float32",
                                     "weight_dtype=float32",
                                     "steps=10",
                                     "learning_rate=0.01",
                                     "use_dpo=true",
                                     "data_path=pairs.jsonl",
                                     "dataset_type=text",
                                     "lora_rank=2",
                                     "lora_init=test",
                                     fmt::format("max_target_length={}", kPairLength),
                                     fmt::format("vocab_size={}", kPairVocabulary)};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return Config::from_args(arguments);
}

// Two pairs a row, whose answers have 1 to 3 targets each; the last row is padding.
Batch some_pairs() {
  Batch batch;
  for (Tensor* const x : {&batch.inputs, &batch.targets, &batch.inputs_position, &batch.inputs_segmentation,
                          &batch.targets_segmentation})
    *x = Memory().zeros(DType::i32, {kPairRows, kPairLength});
  for (std::int64_t row = 0; row + 1 < kPairRows; ++row) {
    for (std::int64_t i = 0; i < kPairLength; ++i) {
      const auto at = static_cast<std::size_t>(row * kPairLength + i);
      const auto token = [&](std::int64_t place) {
        return static_cast<std::int32_t>((place * place * 5 + row * 11 + place) % kPairVocabulary);
      };
      const auto segment = static_cast<std::int32_t>(i / 4 + 1);
      batch.inputs.span<std::int32_t>()[at] = token(i);
      batch.inputs_position.span<std::int32_t>()[at] = static_cast<std::int32_t>(i % 4);
      batch.inputs_segmentation.span<std::int32_t>()[at] = segment;
      if (i % 4 == 3 || i % 4 < (segment + row) % 3) continue;
      batch.targets.span<std::int32_t>()[at] = token(i + 1);
      batch.targets_segmentation.span<std::int32_t>()[at] = segment;
    }
  }
  return batch;
}

std::vector<StepResult> train_pairs(const std::vector<std::string>& keys) {
  const Config config = pairs_config(keys);
  const ModelConfig model = model_config(config);
  const Batch batch = some_pairs();
  std::vector<StepResult> steps;
  run_session(config, mesh_from_config(config), [&](Context& context) {
    Trainer trainer(context, model, train_config(config, model, context.stage.count),
                    Parameters::create(context, parameter_specs(model), 0, nullptr, nullptr));
    for (std::int64_t i = 0; i < 4; ++i) {
      StepResult step = trainer.step(i, BatchRows(batch));
      if (context.rank == 0) steps.push_back(std::move(step));
    }
  });
  return steps;
}

TEST(PreferenceSteps, AreTheSameHoweverTheBatchIsSplit) {
  for (const char* algo : {"dpo_algo=dpo", "dpo_algo=orpo"}) {
    const std::vector<StepResult> whole = train_pairs({algo, "per_device_batch_size=8"});
    EXPECT_GT(whole[0].raw_grad_norm, 0);
    EXPECT_LT(whole[3].loss, whole[0].loss);
    EXPECT_GT(whole[3].rewards->chosen - whole[3].rewards->rejected,
              whole[0].rewards->chosen - whole[0].rewards->rejected);
    for (const std::vector<std::string>& split : std::vector<std::vector<std::string>>{
             {"per_device_batch_size=4", "gradient_accumulation_steps=2"},
             {"ranks=4", "per_device_batch_size=2", "ici_fsdp_parallelism=2", "ici_tensor_parallelism=2"},
             {"ranks=2", "per_device_batch_size=4", "ici_expert_parallelism=2"},
             {"ranks=2", "per_device_batch_size=4", "ici_context_parallelism=2"}}) {
      std::vector<std::string> keys{algo};
      keys.insert(keys.end(), split.begin(), split.end());
      const std::vector<StepResult> got = train_pairs(keys);
      const std::string what = fmt::format("{}", fmt::join(keys, " "));
      for (std::size_t i = 0; i < whole.size(); ++i) {
        EXPECT_NEAR(got[i].loss, whole[i].loss, 2e-5) << what << i;
        EXPECT_NEAR(got[i].raw_grad_norm, whole[i].raw_grad_norm, 2e-4 * whole[i].raw_grad_norm) << what << i;
        EXPECT_NEAR(got[i].rewards->chosen, whole[i].rewards->chosen, 2e-5) << what << i;
        EXPECT_NEAR(got[i].rewards->rejected, whole[i].rewards->rejected, 2e-5) << what << i;
      }
    }
  }
}

// An adapter whose B is 0 is its own reference.
TEST(PreferenceSteps, BeginAtTheReference) {
  const std::vector<StepResult> steps = train_pairs({"lora_init=default", "per_device_batch_size=8"});
  EXPECT_NEAR(steps[0].loss, std::log(2.0), 1e-6);
  EXPECT_EQ(steps[0].rewards->chosen, 0);
}

std::string problem_of_pairs(const std::vector<std::string>& keys) {
  try {
    const Config config = pairs_config(keys);
    const ModelConfig model = model_config(config);
    train_config(config, model, mesh_from_config(config).axis_size("stage"));
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(PreferenceSteps, RefuseWhatTheyWouldPassOver) {
  EXPECT_EQ(problem_of_pairs({}), "");
  EXPECT_MENTIONS(problem_of_pairs({"dpo_algo=orpo", "lora_rank=0", "lora_init=default"}), "lora_rank");
  EXPECT_MENTIONS(problem_of_pairs({"lora_rank=0", "lora_init=default"}), "use_dpo=true", "lora_rank");
  EXPECT_MENTIONS(problem_of_pairs({"use_sft=true"}), "use_sft=true", "use_dpo=true");
  EXPECT_MENTIONS(problem_of_pairs({"eval_interval=5"}), "eval_interval=5", "use_dpo=true");
  EXPECT_MENTIONS(problem_of_pairs({"dataset_type=synthetic"}), "synthetic");
  EXPECT_MENTIONS(problem_of_pairs({"max_segments_per_seq=1"}), "max_segments_per_seq=1", "pair");
  EXPECT_MENTIONS(problem_of_pairs({"mtp_num_layers=1"}), "mtp_num_layers=1", "expected 0");
  EXPECT_MENTIONS(problem_of_pairs({"z_loss_multiplier=0.1"}), "z_loss_multiplier=0.1", "expected 0");
  EXPECT_MENTIONS(problem_of_pairs({"ranks=2", "ici_pipeline_parallelism=2"}), "ici_pipeline_parallelism=2");
  EXPECT_MENTIONS(problem_of_pairs({"routing_record=FILE"}), "routing_record=FILE", "two models");
  EXPECT_MENTIONS(problem_of_pairs({"dpo_label_smoothing=0.7"}), "dpo_label_smoothing", "0.5");
  EXPECT_MENTIONS(problem_of_pairs({"dpo_algo=ipo"}), "dpo_algo", "dpo, orpo");
}

}  // namespace
}  // namespace switchyard

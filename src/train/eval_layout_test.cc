// Tests evaluations during training under their own rules (custom_mesh_and_rule_for_eval): the loss is the
// same, and training is not disturbed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "train/trainer.h"

namespace switchyard {
namespace {

using Keys = std::vector<std::string>;

Keys tiny(const Keys& more) {
  Keys keys{"base_emb_dim=32",
            "base_num_decoder_layers=2",
            "num_experts=8",
            "num_experts_per_tok=2",
            "base_num_query_heads=4",
            "base_num_kv_heads=4",
            "head_dim=8",
            "vocab_size=64",
            "max_target_length=16",
            "dtype=float32",
            "weight_dtype=float32",
            "dataset_type=synthetic",
            "per_device_batch_size=2"};
  keys.insert(keys.end(), more.begin(), more.end());
  return keys;
}

const Keys kMixtral{"decoder_block=mixtral", "base_mlp_dim=32"};
const Keys kDeepseek{
    "decoder_block=deepseek",   "attention_type=mla", "q_lora_rank=16",      "kv_lora_rank=8",
    "qk_nope_head_dim=8",       "qk_rope_head_dim=8", "v_head_dim=8",        "shared_experts=1",
    "first_num_dense_layers=1", "base_mlp_dim=64",    "base_moe_mlp_dim=32", "routed_bias=true",
    "routed_score_func=sigmoid"};

struct Losses {
  double before = 0, own = 0, after = 0;  // of evaluations: under the rules of training, their own, again
  double step = 0;                        // of a step after them
};

Losses losses_of(const Keys& keys) {
  const Config config = Config::from_args(keys);
  const Mesh mesh = mesh_from_config(config);
  const ModelConfig model = model_config(config);
  const BatchSizes sizes = batch_sizes(config, mesh);
  const std::unique_ptr<Dataset> data = make_synthetic(sizes.step, sizes.sequence, model.vocab);
  Losses losses;
  run_session(config, mesh, [&](Context& context) {
    Trainer trainer(context, model, train_config(config, model, context.stage.count),
                    Parameters::create(context, stage_specs(parameter_specs(model), context.stage, model), 0,
                                       nullptr, nullptr));
    const BatchRows batch(*data, 0, sizes.step, sizes.sequence);
    const auto loss = [&] {
      const Trainer::EvalResult result = trainer.evaluate(batch);
      return result.loss_sum / result.targets;
    };
    trainer.step(0, batch);
    Losses own;
    own.before = loss();
    const AxisRules rules(config.axis_rules_for_eval(), *context.mesh);
    {
      const Trainer::UnderRules under(trainer, rules);
      own.own = loss();
    }
    own.after = loss();
    own.step = trainer.step(1, batch).loss;
    if (context.comm->rank() == 0) losses = own;
  });
  return losses;
}

void expect_same_loss(const Keys& model, const Keys& layout, const std::string& mesh_for_eval) {
  SCOPED_TRACE(fmt::format("{} {} {}", model[0], fmt::join(layout, " "), mesh_for_eval));
  Keys keys = tiny(model);
  keys.insert(keys.end(), layout.begin(), layout.end());
  const Losses plain = losses_of(keys);
  keys.push_back("custom_mesh_and_rule_for_eval=" + mesh_for_eval);
  const Losses losses = losses_of(keys);
  EXPECT_NEAR(losses.own, losses.before, 1e-6 * losses.before);
  EXPECT_EQ(losses.after, losses.before);
  EXPECT_EQ(losses.before, plain.before);
  EXPECT_EQ(losses.step, plain.step);
}

TEST(EvaluationLayout, HasTheLossOfTheTrainingLayout) {
  const Keys four{"ranks=4", "ici_expert_parallelism=2", "ici_fsdp_parallelism=2"},
      eight{"ranks=8", "ici_expert_parallelism=4", "ici_fsdp_parallelism=2"};
  for (const char* mesh : {"pure-fsdp", "ep-as-cp", "ep-as-dp", "fsdp-as-dp-for-attn", "shard-exp-on-fsdp"}) {
    expect_same_loss(kMixtral, four, mesh);
    expect_same_loss(kDeepseek, eight, mesh);
  }
  expect_same_loss(kDeepseek,
                   {"ranks=8", "custom_mesh_and_rule=ep-as-dp", "ici_expert_parallelism=2",
                    "ici_fsdp_parallelism=2", "ici_fsdp_transpose_parallelism=2"},
                   "ep-tp");
  expect_same_loss(
      kMixtral,
      {"ranks=8", "ici_context_parallelism=2", "ici_expert_parallelism=2", "ici_tensor_parallelism=2"},
      "cp-as-ep");
  expect_same_loss(
      kMixtral, {"ranks=8", "ici_fsdp_parallelism=2", "ici_expert_parallelism=2", "ici_tensor_parallelism=2"},
      "tp-as-ep");
}

TEST(EvaluationLayout, OfAPipelineAndWithEarlyGathers) {
  expect_same_loss(
      kMixtral,
      {"ranks=8", "ici_pipeline_parallelism=2", "ici_expert_parallelism=2", "ici_fsdp_parallelism=2"},
      "pipeline-large-moe");
  expect_same_loss(kDeepseek,
                   {"ranks=4", "ici_expert_parallelism=2", "ici_fsdp_parallelism=2",
                    "overlap_communication=on", "use_ring_of_experts=true"},
                   "ep-as-cp");
}

// Under compat=maxtext: rows are dropped in training only, where evaluations have rules of their own.
TEST(EvaluationLayout, DropsNoRows) {
  const Keys layout{"ranks=4", "ici_expert_parallelism=4", "ici_fsdp_parallelism=1"};
  Keys keys = tiny(kMixtral);
  keys.insert(keys.end(), layout.begin(), layout.end());
  keys.insert(keys.end(), {"custom_mesh_and_rule_for_eval=ep-as-cp", "learning_rate=0", "compat=maxtext"});
  const Losses dropless = losses_of(keys);
  keys.push_back("ragged_buffer_factor=0.3");
  const Losses capped = losses_of(keys);
  EXPECT_NEAR(capped.own, dropless.own, 1e-6 * dropless.own);
  EXPECT_EQ(capped.after, capped.before);
  EXPECT_GT(std::abs(capped.step - dropless.step), 1e-5);
}

}  // namespace
}  // namespace switchyard

// Tests sparse attention in training: which weights an indexer's loss changes, and which not.
#include <gtest/gtest.h>

#include <cmath>

#include "config/config.h"
#include "core/error.h"
#include "data/dataset.h"
#include "engine/session.h"
#include "train/trainer.h"

namespace switchyard {
namespace {

using Arguments = std::vector<std::string>;

Arguments indexed_model(const Arguments& more) {
  Arguments arguments{"decoder_block=deepseek",
                      "base_emb_dim=32",
                      "base_num_decoder_layers=2",
                      "num_experts=4",
                      "num_experts_per_tok=2",
                      "base_mlp_dim=32",
                      "base_moe_mlp_dim=32",
                      "base_num_query_heads=2",
                      "base_num_kv_heads=2",
                      "attention_type=mla",
                      "routed_score_func=sigmoid",
                      "kv_lora_rank=16",
                      "q_lora_rank=12",
                      "qk_nope_head_dim=8",
                      "qk_rope_head_dim=4",
                      "v_head_dim=8",
                      "use_indexer=true",
                      "indexer_n_heads=3",
                      "indexer_head_dim=8",
                      "indexer_topk=5",
                      "vocab_size=64",
                      "max_target_length=16",
                      "dtype=float32",
                      "weight_dtype=float32",
                      "load_balance_loss_weight=0",
                      "steps=6",
                      "warmup_steps_fraction=0",
                      "gradient_clipping_threshold=0",
                      "adam_weight_decay=0",
                      "dataset_type=synthetic",
                      "learning_rate=0.01"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

struct Training {
  std::vector<StepResult> steps;
  std::map<std::string, Tensor> before, after;
};

// Some steps on one batch.
Training trained_with_indexer(const Arguments& more, int count) {
  const Config config = Config::from_args(indexed_model(more));
  const Mesh mesh = mesh_from_config(config);
  const ModelConfig model = model_config(config);
  const BatchSizes sizes = batch_sizes(config, mesh);
  Training training;
  run_session(config, mesh, [&](Context& context) {
    Trainer trainer(context, model, train_config(config, model, context.stage.count),
                    Parameters::create(context, stage_specs(parameter_specs(model), context.stage, model), 0,
                                       nullptr, nullptr));
    const auto note = [&](std::map<std::string, Tensor>& weights) {
      if (context.comm->rank() != 0) return;
      for (const Parameter& p : trainer.parameters().all())
        weights.emplace(p.spec.name, p.array.tensor().cast(DType::f32).clone());
    };
    note(training.before);
    const auto data = make_synthetic(sizes.step, sizes.sequence, model.vocab);
    for (int step = 0; step < count; ++step) {
      const StepResult result = trainer.step(step, data->read(0, sizes.step));
      if (context.comm->rank() == 0) training.steps.push_back(result);
    }
    note(training.after);
  });
  return training;
}

double largest_difference(const Tensor& a, const Tensor& b) {
  double most = 0;
  for (std::int64_t i = 0; i < a.size(); ++i)
    most = std::max(
        most, std::abs(static_cast<double>(a.data<float>()[i]) - static_cast<double>(b.data<float>()[i])));
  return most;
}

bool is_of_indexer(const std::string& name) {
  return name.find(".indexer.") != std::string::npos;
}

TEST(IndexerTraining, AloneItMovesNothingElse) {
  for (const char* layout : {"ranks=1", "ranks=2"}) {
    const Training training = trained_with_indexer({"indexer_loss_scaling_factor=0.5", layout}, 2);
    for (const StepResult& step : training.steps) {
      EXPECT_EQ(step.lm_loss, 0);
      EXPECT_GT(step.indexer_loss, 0);
      EXPECT_EQ(step.loss, step.indexer_loss);
    }
    for (const auto& [name, weight] : training.before) {
      if (is_of_indexer(name))
        EXPECT_GT(largest_difference(weight, training.after.at(name)), 1e-4) << name;
      else
        EXPECT_EQ(largest_difference(weight, training.after.at(name)), 0) << name;
    }
  }
}

TEST(IndexerTraining, BesideTheModelItMovesOnlyItself) {
  const Training with = trained_with_indexer(
                     {"indexer_loss_scaling_factor=0.5", "indexer_sparse_training=true"}, 1),
                 without = trained_with_indexer({}, 1);
  EXPECT_EQ(with.steps[0].lm_loss, without.steps[0].lm_loss);
  EXPECT_GT(with.steps[0].indexer_loss, 0);
  EXPECT_EQ(without.steps[0].indexer_loss, 0);
  EXPECT_NEAR(with.steps[0].loss, with.steps[0].lm_loss + with.steps[0].indexer_loss, 1e-6);
  for (const auto& [name, weight] : with.after) {
    if (is_of_indexer(name)) {
      EXPECT_GT(largest_difference(weight, without.after.at(name)), 1e-4) << name;
      EXPECT_EQ(largest_difference(with.before.at(name), without.after.at(name)), 0)
          << name;  // without a loss
    } else {
      EXPECT_EQ(largest_difference(weight, without.after.at(name)), 0) << name;
    }
  }
}

// A step down the gradient lowers the loss by the rate times the gradient's square: a finite difference of
// the whole model's loss by all parameters of the indexer.
TEST(IndexerTraining, LossFallsAsTheGradientSays) {
  for (const char* layout : {"ranks=1", "ranks=4 ici_fsdp_parallelism=2 ici_tensor_parallelism=2",
                             "ranks=2 ici_context_parallelism=2"}) {
    Arguments more{"indexer_loss_scaling_factor=0.5", "base_num_decoder_layers=1", "opt_type=sgd",
                   "learning_rate=0.001", "learning_rate_final_fraction=1"};
    for (std::string rest = layout; !rest.empty();) {
      more.push_back(rest.substr(0, rest.find(' ')));
      rest = rest.size() > more.back().size() ? rest.substr(more.back().size() + 1) : "";
    }
    const Training training = trained_with_indexer(more, 2);
    const StepResult &first = training.steps[0], &second = training.steps[1];
    const double expected = first.learning_rate * first.raw_grad_norm * first.raw_grad_norm;
    EXPECT_GT(expected, 1e-5) << layout;
    EXPECT_NEAR((first.loss - second.loss) / expected, 1, 0.03) << layout;
  }
}

TEST(IndexerTraining, KeysThatAreRefused) {
  const auto problem = [](const Arguments& more) -> std::string {
    try {
      model_config(Config::from_args(indexed_model(more)));
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::usage);
      return error.what();
    }
    return "";
  };
  const auto expect = [&](const Arguments& more, const char* part) {
    EXPECT_NE(problem(more).find(part), std::string::npos) << problem(more);
  };
  expect({"q_lora_rank=0"}, "use_indexer=true: expected attention_type=mla with q_lora_rank above 0");
  expect({"indexer_head_dim=2"}, "indexer_head_dim=2: expected at least qk_rope_head_dim=4");
  expect({"indexer_topk=0"}, "indexer_topk=0");
  expect({"indexer_use_approx_top_k=true"}, "keys are chosen exactly");
  expect({"indexer_mask_exact_topk=false"}, "set it to true");
  expect({"quantize_kvcache=true"}, "quantize_kvcache=true: a cache of int8 has no chosen keys");
  expect({"indexer_loss_scaling_factor=1", "indexer_topk=16"}, "expected less than max_target_length=16");
}

}  // namespace
}  // namespace switchyard

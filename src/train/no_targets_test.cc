// Rows and tokens that are nothing but padding change no loss, no gradient and no count of dropped rows; a
// batch without targets has the loss 0.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "config/config.h"
#include "data/dataset.h"
#include "engine/session.h"
#include "train/trainer.h"

namespace switchyard {
namespace {

constexpr std::int64_t kDocuments = 8, kDocumentTokens = 12, kPaddedVocabulary = 64;

Config padded_config(const std::vector<std::string>& more) {
  std::vector<std::string> arguments{"decoder_block=deepseek",
                                     "base_emb_dim=32",
                                     "base_num_decoder_layers=2",
                                     "first_num_dense_layers=1",
                                     "num_experts=8",
                                     "num_experts_per_tok=2",
                                     "shared_experts=1",
                                     "base_mlp_dim=32",
                                     "base_moe_mlp_dim=16",
                                     "base_num_query_heads=2",
                                     "base_num_kv_heads=2",
                                     "attention_type=mla",
                                     "q_lora_rank=0",
                                     "kv_lora_rank=16",
                                     "qk_nope_head_dim=8",
                                     "qk_rope_head_dim=8",
                                     "v_head_dim=8",
                                     "routed_score_func=sigmoid",
                                     "routed_bias=true",
                                     "routed_bias_update_rate=0.01",
                                     "load_balance_loss_weight=0.01",
                                     "dtype=float32",
                                     "weight_dtype=float32",
                                     "steps=10",
                                     "learning_rate=0.01",
                                     "dataset_type=synthetic",
                                     "opt_type=sgd",
                                     fmt::format("vocab_size={}", kPaddedVocabulary)};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return Config::from_args(arguments);
}

// The same documents, one a row, in `rows` rows of `length` tokens.
Batch documents_in_rows(std::int64_t rows, std::int64_t length, bool with_targets = true) {
  Batch batch;
  for (Tensor* const x : {&batch.inputs, &batch.targets, &batch.inputs_position, &batch.inputs_segmentation,
                          &batch.targets_segmentation})
    *x = Memory().zeros(DType::i32, {rows, length});
  for (std::int64_t row = 0; row < kDocuments; ++row) {
    for (std::int64_t i = 0; i < kDocumentTokens; ++i) {
      const auto at = static_cast<std::size_t>(row * length + i);
      const auto token = [&](std::int64_t place) {
        return static_cast<std::int32_t>((place * place * 7 + row * 13 + place) % kPaddedVocabulary);
      };
      batch.inputs.span<std::int32_t>()[at] = token(i);
      batch.targets.span<std::int32_t>()[at] = token(i + 1);
      batch.inputs_position.span<std::int32_t>()[at] = static_cast<std::int32_t>(i);
      batch.inputs_segmentation.span<std::int32_t>()[at] = 1;
      batch.targets_segmentation.span<std::int32_t>()[at] = with_targets && i + 1 < kDocumentTokens ? 1 : 0;
    }
  }
  return batch;
}

struct PaddedRun {
  std::vector<StepResult> steps;
  double eval_loss = 0, eval_targets = 0;
  std::map<std::string, std::vector<float>> weights;  // whole ones of rank 0
};

PaddedRun train_padded(const std::vector<Batch>& batches, const std::vector<std::string>& more) {
  std::vector<std::string> keys{fmt::format("max_target_length={}", batches[0].inputs.dim(1)),
                                "per_device_batch_size=1"};
  keys.insert(keys.end(), more.begin(), more.end());
  const Config config = padded_config(keys);
  const Mesh mesh = mesh_from_config(config);
  const ModelConfig model = model_config(config);
  PaddedRun result;
  run_session(config, mesh, [&](Context& context) {
    Trainer trainer(context, model, train_config(config, model, 1),
                    Parameters::create(context, parameter_specs(model), 0, nullptr, nullptr));
    for (std::size_t i = 0; i < batches.size(); ++i) {
      StepResult step = trainer.step(static_cast<std::int64_t>(i), BatchRows(batches[i]));
      if (context.rank == 0) result.steps.push_back(std::move(step));
    }
    const Trainer::EvalResult eval = trainer.evaluate(BatchRows(batches.back()));
    if (context.rank != 0) return;
    result.eval_loss = eval.loss_sum, result.eval_targets = eval.targets;
    for (const Parameter& p : trainer.parameters().all()) {
      if (p.array.info().local == p.array.shape()) {
        const auto values = p.array.tensor().span<float>();
        result.weights[p.spec.name] = {values.begin(), values.end()};
      }
    }
  });
  return result;
}

void expect_same_run(const PaddedRun& got, const PaddedRun& want, const std::string& what) {
  for (std::size_t i = 0; i < want.steps.size(); ++i) {
    const StepResult &a = got.steps[i], &b = want.steps[i];
    EXPECT_EQ(a.total_weights, b.total_weights) << what;
    EXPECT_NEAR(a.lm_loss, b.lm_loss, 1e-5) << what;
    EXPECT_NEAR(a.balance_loss, b.balance_loss, 1e-7) << what;
    EXPECT_NEAR(a.raw_grad_norm, b.raw_grad_norm, 1e-4 * b.raw_grad_norm) << what;
    ASSERT_EQ(a.layers.size(), b.layers.size());
    for (std::size_t l = 0; l < a.layers.size(); ++l) {
      EXPECT_EQ(a.layers[l].rows, b.layers[l].rows) << what;
      EXPECT_EQ(a.layers[l].dropped, b.layers[l].dropped) << what;
      EXPECT_EQ(a.layers[l].passes, b.layers[l].passes) << what;
      EXPECT_EQ(a.layers[l].shard_load, b.layers[l].shard_load) << what;
    }
  }
  EXPECT_EQ(got.eval_targets, want.eval_targets) << what;
  EXPECT_NEAR(got.eval_loss, want.eval_loss, 1e-4 * want.eval_loss) << what;
  EXPECT_GE(want.weights.size(), 4u);
  for (const auto& [name, values] : want.weights) {
    for (std::size_t i = 0; i < values.size(); ++i)
      ASSERT_NEAR(got.weights.at(name)[i], values[i], 1e-5) << what << name;
  }
}

TEST(PaddingOfABatch, ChangesNothing) {
  const std::vector<std::vector<std::string>> cases{
      {},
      {"ranks=4", "ici_expert_parallelism=4"},
      {"ranks=4", "ici_expert_parallelism=4", "use_ring_of_experts=true", "ragged_buffer_factor=1.1"},
      {"ranks=4", "ici_expert_parallelism=4", "ragged_buffer_factor=1.1", "eval_ragged_buffer_factor=0.9",
       "log_required_ragged_buffer_factor=true"},
      {"ranks=4", "ici_expert_parallelism=4", "ragged_buffer_factor=1.1", "moe_dropless_fallback=layer",
       "log_required_ragged_buffer_factor=true"},
      {"ranks=4", "ici_expert_parallelism=2", "ici_tensor_parallelism=2", "ragged_buffer_factor=1.0"},
      {"ranks=2", "ici_fsdp_parallelism=2", "sparse_matmul=false", "capacity_factor=1.0"},
      {"gradient_accumulation_steps=2", "sparse_matmul=false"},
  };
  int crowded = 0;
  for (const auto& keys : cases) {
    const std::string what = fmt::format("{}", fmt::join(keys, " "));
    const PaddedRun bare = train_padded(
        {documents_in_rows(kDocuments, kDocumentTokens), documents_in_rows(kDocuments, kDocumentTokens)},
        keys);
    crowded += bare.steps[0].layers[0].rows_dropped() > 0 || bare.steps[0].layers[0].passes > 1 ? 1 : 0;
    for (const auto& [rows, length] : {std::pair<std::int64_t, std::int64_t>{kDocuments, 4 * kDocumentTokens},
                                       {2 * kDocuments, kDocumentTokens},
                                       {2 * kDocuments, 2 * kDocumentTokens}})
      expect_same_run(train_padded({documents_in_rows(rows, length), documents_in_rows(rows, length)}, keys),
                      bare, fmt::format("{} rows of {} tokens, {}: ", rows, length, what));
  }
  EXPECT_GE(crowded, 4);
}

// Documents that have tokens but no targets, and rows that have neither.
TEST(NoTargets, AreALossOfZero) {
  for (const std::vector<std::string>& keys : std::vector<std::vector<std::string>>{
           {}, {"ranks=2", "ici_expert_parallelism=2"}, {"mtp_num_layers=1"}, {"compat=maxtext"}}) {
    Batch nothing = documents_in_rows(kDocuments, kDocumentTokens, false);
    const PaddedRun some = train_padded({documents_in_rows(kDocuments, kDocumentTokens), nothing,
                                         documents_in_rows(kDocuments, kDocumentTokens), nothing},
                                        keys);
    EXPECT_EQ(some.steps[1].total_weights, 0);
    EXPECT_EQ(some.steps[1].lm_loss, 0);
    EXPECT_EQ(some.steps[1].prediction_loss, 0);
    EXPECT_EQ(some.steps[1].bad, "");
    EXPECT_TRUE(std::isfinite(some.steps[1].raw_grad_norm));
    EXPECT_GT(some.steps[2].lm_loss, 0);
    EXPECT_TRUE(std::isfinite(some.steps[2].loss));
    EXPECT_EQ(some.eval_targets, 0);
    EXPECT_EQ(some.eval_loss, 0);
    nothing.inputs_segmentation = Memory().zeros(DType::i32, {kDocuments, kDocumentTokens});
    const PaddedRun none = train_padded({nothing}, keys);
    EXPECT_EQ(none.steps[0].lm_loss, 0);
    EXPECT_EQ(none.steps[0].bad, "");
    EXPECT_TRUE(std::isfinite(none.steps[0].loss) && std::isfinite(none.steps[0].raw_grad_norm));
  }
}

// A microbatch without targets leaves the step what the others make of it.
TEST(NoTargets, OfOneMicrobatch) {
  Batch batch = documents_in_rows(2 * kDocuments, kDocumentTokens);  // the second half is padding
  const PaddedRun whole = train_padded({documents_in_rows(kDocuments, kDocumentTokens)}, {}),
                  halves = train_padded({batch}, {"gradient_accumulation_steps=2"});
  EXPECT_NEAR(halves.steps[0].loss, whole.steps[0].loss, 1e-6);
  EXPECT_NEAR(halves.steps[0].raw_grad_norm, whole.steps[0].raw_grad_norm, 1e-5);
}

}  // namespace
}  // namespace switchyard

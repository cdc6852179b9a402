// Tests documents in rows of their own, packed into one row, and beside padding rows: equal steps.
#include <gtest/gtest.h>

#include <random>

#include "config/config.h"
#include "engine/session.h"
#include "train/trainer.h"

namespace switchyard {
namespace {

using Words = std::vector<std::string>;
using Documents = std::vector<std::vector<std::int32_t>>;  // of tokens; each but the last is an input

constexpr std::int64_t kLength = 24;

Documents documents() {
  std::mt19937 random(7);
  Documents all;
  for (const std::size_t tokens : {9u, 6u, 8u}) {
    all.emplace_back();
    for (std::size_t i = 0; i < tokens; ++i) all.back().push_back(static_cast<std::int32_t>(random() % 60));
  }
  return all;
}

// Row r holds the documents rows[r], one after the other.
Batch batch_of(const std::vector<Documents>& rows) {
  const Shape shape{static_cast<std::int64_t>(rows.size()), kLength};
  const auto zeros = [&] { return Tensor::zeros(DType::i32, shape); };
  Batch batch{zeros(), zeros(), zeros(), zeros(), zeros()};
  const auto put = [](const Tensor& x, std::size_t place, std::int32_t value) {
    x.span<std::int32_t>()[place] = value;
  };
  for (std::size_t r = 0; r < rows.size(); ++r) {
    std::size_t place = r * kLength;
    std::int32_t segment = 0;
    for (const auto& document : rows[r]) {
      ++segment;
      for (std::size_t i = 0; i + 1 < document.size(); ++i, ++place) {
        put(batch.inputs, place, document[i]);
        put(batch.targets, place, document[i + 1]);
        put(batch.inputs_position, place, static_cast<std::int32_t>(i));
        put(batch.inputs_segmentation, place, segment);
        put(batch.targets_segmentation, place, segment);
      }
    }
  }
  return batch;
}

Words joined(std::initializer_list<Words> lists) {
  Words all;
  for (const Words& words : lists) all.insert(all.end(), words.begin(), words.end());
  return all;
}

StepResult step_on(const Batch& batch, const Words& keys) {
  Words arguments{"base_emb_dim=32",
                  "base_num_decoder_layers=2",
                  "num_experts=4",
                  "num_experts_per_tok=1",
                  "base_mlp_dim=32",
                  "base_moe_mlp_dim=32",
                  "head_dim=8",
                  "base_num_query_heads=4",
                  "base_num_kv_heads=4",
                  "vocab_size=64",
                  "dtype=float32",
                  "weight_dtype=float32",
                  "steps=4",
                  "learning_rate=0.01",
                  "warmup_steps_fraction=0",
                  "load_balance_loss_weight=0.5",
                  "max_target_length=" + std::to_string(kLength)};
  arguments.insert(arguments.end(), keys.begin(), keys.end());
  const Config config = Config::from_args(arguments);
  const Mesh mesh = mesh_from_config(config);
  const ModelConfig model = model_config(config);
  StepResult result;
  run_session(config, mesh, [&](Context& context) {
    Trainer trainer(context, model, train_config(config, model, context.stage.count),
                    Parameters::create(context, stage_specs(parameter_specs(model), context.stage, model), 0,
                                       nullptr, nullptr));
    const StepResult step = trainer.step(0, BatchRows(batch));
    if (context.comm->rank() == 0) result = step;
  });
  return result;
}

const Words kPackedMixtral{"decoder_block=mixtral"};
const Words kPackedLlama4{"decoder_block=llama4", "chunk_attn_window_size=4", "nope_layer_interval=2",
                          "shared_experts=1", "interleave_moe_layer_step=1"};

void expect_same_step(const StepResult& a, const StepResult& b) {
  EXPECT_EQ(a.total_weights, b.total_weights);
  EXPECT_NEAR(a.lm_loss, b.lm_loss, 2e-6 * b.lm_loss);
  EXPECT_NEAR(a.raw_grad_norm, b.raw_grad_norm, 1e-5 * b.raw_grad_norm);
}

TEST(PackedRows, PaddingChangesNothing) {
  const Documents all = documents();
  const Batch full = batch_of({{all[0]}, {all[1]}}), padded = batch_of({{all[0]}, {}, {all[1]}, {}});
  for (const Words& keys :
       {Words{"per_device_batch_size=2"}, Words{"moe_use_megatron_seq_aux_loss=true",
                                                "routed_score_func=sigmoid", "per_device_batch_size=2"}}) {
    const StepResult without = step_on(full, joined({kPackedMixtral, keys}));
    EXPECT_GT(without.balance_loss, 0);
    for (const Words& layout :
         {Words{"ranks=1", "per_device_batch_size=4"},
          Words{"ranks=1", "per_device_batch_size=2", "gradient_accumulation_steps=2"},
          Words{"ranks=4", "per_device_batch_size=1", "ici_fsdp_parallelism=2", "ici_expert_parallelism=2"},
          Words{"ranks=2", "per_device_batch_size=2", "ici_pipeline_parallelism=2"}}) {
      SCOPED_TRACE(layout.back());
      const StepResult with = step_on(padded, joined({kPackedMixtral, keys, layout}));
      expect_same_step(with, without);
      EXPECT_NEAR(with.balance_loss, without.balance_loss, 2e-6 * without.balance_loss);
    }
  }
  // MaxText counts rows of padding.
  const StepResult counted = step_on(
                       padded, joined({kPackedMixtral, Words{"compat=maxtext", "per_device_batch_size=4"}})),
                   others = step_on(
                       full, joined({kPackedMixtral, Words{"compat=maxtext", "per_device_batch_size=2"}}));
  EXPECT_GT(std::abs(counted.balance_loss - others.balance_loss), 1e-3 * others.balance_loss);
}

TEST(PackedRows, ChunksBeginWithTheirDocument) {
  const Documents all = documents();
  const Batch apart = batch_of({{all[0]}, {all[1]}, {all[2]}, {}}), packed = batch_of({all, {}});
  const Words no_balance{"load_balance_loss_weight=0"};
  const StepResult alone =
      step_on(apart, joined({kPackedLlama4, no_balance, Words{"per_device_batch_size=4"}}));
  for (const Words& layout : {Words{"ranks=1", "per_device_batch_size=2"},
                              Words{"ranks=2", "per_device_batch_size=1", "ici_context_parallelism=2"},
                              Words{"ranks=2", "per_device_batch_size=1", "ici_tensor_parallelism=2"},
                              Words{"ranks=1", "per_device_batch_size=2", "remat_policy=full"}}) {
    SCOPED_TRACE(layout.back());
    expect_same_step(step_on(packed, joined({kPackedLlama4, no_balance, layout})), alone);
  }
  // MaxText counts chunks from the beginning of the row.
  const StepResult by_row = step_on(packed, joined({kPackedLlama4, no_balance,
                                                    Words{"compat=maxtext", "per_device_batch_size=2"}})),
                   own = step_on(apart, joined({kPackedLlama4, no_balance,
                                                Words{"compat=maxtext", "per_device_batch_size=4"}}));
  EXPECT_GT(std::abs(by_row.lm_loss - own.lm_loss), 1e-5 * own.lm_loss);
}

}  // namespace
}  // namespace switchyard

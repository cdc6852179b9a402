// Tests that each rank reads its own rows of a batch, and that the targets of all rows count.
#include <gtest/gtest.h>

#include <mutex>
#include <set>

#include "config/config.h"
#include "data/packing.h"
#include "engine/session.h"
#include "train/trainer.h"

namespace switchyard {
namespace {

// Random rows of which row r has r + 1 targets; notes who reads which.
class NotedRows : public Dataset {
 public:
  NotedRows(std::int64_t batch, std::int64_t sequence, std::int64_t vocab)
      : rows_(make_synthetic(batch, sequence, vocab)) {}
  Batch read(std::int64_t first_row, std::int64_t rows) override {
    Batch batch = rows_->read(first_row, rows);
    for (std::int64_t r = 0; r < rows; ++r) {
      const auto segments = batch.targets_segmentation.slice_rows(r, r + 1).span<std::int32_t>();
      std::fill(segments.begin() + (first_row + r) % rows_->rows() + 1, segments.end(), 0);
    }
    const std::scoped_lock lock(mutex_);
    for (std::int64_t r = first_row; r < first_row + rows; ++r) ++reads_[r];
    return batch;
  }
  std::int64_t rows() const override { return rows_->rows(); }
  std::string description() const override { return rows_->description(); }
  std::map<std::int64_t, int> reads() const { return reads_; }  // of each row

 private:
  std::unique_ptr<Dataset> rows_;
  std::mutex mutex_;
  std::map<std::int64_t, int> reads_;
};

struct Step {
  StepResult result;
  std::map<std::int64_t, int> reads;
};

Step step_on(const std::vector<std::string>& keys) {
  std::vector<std::string> arguments{
      "decoder_block=mixtral",  "base_emb_dim=32",        "base_num_decoder_layers=2",
      "num_experts=4",          "num_experts_per_tok=2",  "base_mlp_dim=32",
      "base_num_query_heads=4", "base_num_kv_heads=4",    "head_dim=8",
      "vocab_size=64",          "max_target_length=16",   "dtype=float32",
      "weight_dtype=float32",   "dataset_type=synthetic", "gradient_accumulation_steps=2"};
  arguments.insert(arguments.end(), keys.begin(), keys.end());
  const Config config = Config::from_args(arguments);
  const Mesh mesh = mesh_from_config(config);
  const ModelConfig model = model_config(config);
  const BatchSizes sizes = batch_sizes(config, mesh);
  NotedRows data(sizes.step, sizes.sequence, model.vocab);
  Step step;
  run_session(config, mesh, [&](Context& context) {
    Trainer trainer(context, model, train_config(config, model, context.stage.count),
                    Parameters::create(context, stage_specs(parameter_specs(model), context.stage, model), 0,
                                       nullptr, nullptr));
    const StepResult result = trainer.step(0, BatchRows(data, 0, sizes.step, sizes.sequence));
    if (context.comm->rank() == 0) step.result = result;
  });
  step.reads = data.reads();
  return step;
}

TEST(BatchRows, EachRankReadsItsOwnAndAllTargetsCount) {
  const Step one = step_on({"ranks=1", "per_device_batch_size=4"});
  EXPECT_EQ(one.result.total_weights, 36);  // 1 + 2 + ... + 8
  struct Layout {
    std::vector<std::string> keys;
    int readers;  // of each row: the ranks that do not differ in rows
  };
  const Layout layouts[]{
      {{"ranks=4", "ici_fsdp_parallelism=4", "per_device_batch_size=1"}, 1},
      {{"ranks=4", "ici_fsdp_parallelism=2", "ici_tensor_parallelism=2", "per_device_batch_size=1"}, 2},
      {{"ranks=4", "ici_data_parallelism=2", "ici_context_parallelism=2", "per_device_batch_size=1"}, 2},
  };
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(layout.keys[1] + " " + layout.keys[2]);
    const Step many = step_on(layout.keys);
    EXPECT_EQ(many.result.total_weights, one.result.total_weights);
    EXPECT_NEAR(many.result.loss, one.result.loss, 1e-5);
    EXPECT_NEAR(many.result.grad_norm, one.result.grad_norm, 1e-4 * one.result.grad_norm);
    EXPECT_EQ(many.reads.size(), 8u);
    for (const auto& [row, readers] : many.reads) EXPECT_EQ(readers, layout.readers) << row;
  }
}

}  // namespace
}  // namespace switchyard

#include "generate/generator.h"

#include <algorithm>

#include "models/pipeline.h"
#include "nn/layers.h"
#include "ops/reshard.h"

namespace switchyard {
namespace {

// What only training needs is left out, and tokens are few: they go to the experts at once.
ModelConfig without_training(ModelConfig model) {
  model.moe.balance_weight = 0;
  model.moe.token_chunks = 1;
  return model;
}

}  // namespace

Generator::Generator(Context& context, const ModelConfig& model, const Parameters& parameters,
                     std::int64_t capacity)
    : context_(context),
      model_(without_training(model)),
      parameters_(parameters),
      capacity_(capacity),
      caches_(static_cast<std::size_t>(model.layers)) {
  for (AttentionCache& cache : caches_) cache.capacity = capacity;
}

Batch Generator::batch_of(std::span<const std::vector<std::int32_t>> rows) const {
  std::size_t longest = 0;
  for (const auto& row : rows) longest = std::max(longest, row.size());
  const Shape shape{static_cast<std::int64_t>(rows.size()), static_cast<std::int64_t>(longest)};
  Batch batch;
  batch.inputs = Tensor::zeros(DType::i32, shape);
  batch.inputs_position = Tensor::zeros(DType::i32, shape);
  batch.inputs_segmentation = Tensor::zeros(DType::i32, shape);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    for (std::size_t i = 0; i < rows[r].size(); ++i) {
      const std::size_t at = r * longest + i;
      batch.inputs.span<std::int32_t>()[at] = rows[r][i];
      batch.inputs_position.span<std::int32_t>()[at] =
          static_cast<std::int32_t>(lengths_[r]) + static_cast<std::int32_t>(i);
      batch.inputs_segmentation.span<std::int32_t>()[at] = 1;
    }
  }
  batch.targets = batch.inputs;
  batch.targets_segmentation = batch.inputs_segmentation;
  return batch;
}

Tensor Generator::feed(std::span<const std::vector<std::int32_t>> rows) {
  if (lengths_.empty()) lengths_.resize(rows.size());
  CHECK(rows.size() == lengths_.size(), "{} rows after {}", rows.size(), lengths_.size());
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const std::int64_t length = lengths_[r] + static_cast<std::int64_t>(rows[r].size());
    CHECK(!rows[r].empty() && length <= capacity_, "row {}: {} tokens, room for {}", r, length, capacity_);
  }
  const NoGrad no_grad(context_);
  const Batch batch = batch_of(rows);
  const Shape shape{batch.inputs.dim(0), batch.inputs.dim(1), model_.emb};
  Tensor logits(DType::f32, {shape[0], 1, model_.vocab});
  Pipeline(context_, PipelineSchedule::one_forward_one_backward, model_.dtype, shape,
           block_sharding(*context_.rules, shape))
      .evaluate([&](std::int64_t, const Array& input) {
        ForwardOptions options;
        options.input = input;
        options.caches = &caches_;
        const ForwardResult out =
            forward(context_, model_, parameters_, place_batch(context_, batch), options);
        if (out.logits.defined()) logits = replicate(context_, out.logits).tensor();
        return StageOutput{out.output, out.loss};
      });
  if (context_.stage.count > 1) {
    context_.comm->broadcast(context_.stage.across(), "stage", context_.stage.count - 1, logits.raw(),
                             static_cast<std::int64_t>(logits.bytes()));
  }
  for (std::size_t r = 0; r < rows.size(); ++r) lengths_[r] += static_cast<std::int64_t>(rows[r].size());
  return logits.reshaped({shape[0], model_.vocab});
}

}  // namespace switchyard

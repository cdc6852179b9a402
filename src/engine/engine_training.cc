// The engine's losses, gradients and steps.
#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <span>
#include <utility>

#include "core/error.h"
#include "engine/engine_impl.h"
#include "engine/session.h"
#include "models/pipeline.h"
#include "ops/loss.h"
#include "ops/reshard.h"
#include "train/step_cost.h"

namespace switchyard {
namespace {

// i32 or f32 [rows, length], of a value for each token.
template <typename T>
Tensor laid_out(const TokenBatch& batch, DType dtype, const std::function<T(std::size_t)>& value_at) {
  const Tensor tensor(dtype, {batch.rows, batch.length});
  for (std::int64_t i = 0; i < tensor.size(); ++i)
    tensor.data<T>()[i] = value_at(static_cast<std::size_t>(i));
  return tensor;
}

Batch batch_of(const TrainBatch& batch) {
  const TokenBatch& inputs = batch.inputs;
  const auto length = static_cast<std::size_t>(inputs.length);
  const auto segment = [&](std::size_t i) { return batch.segments.empty() ? 1 : batch.segments[i]; };
  const auto continues = [&](std::size_t i) {  // the token after i belongs to the same document
    return (i + 1) % length != 0 && segment(i) != 0 && segment(i + 1) == segment(i);
  };
  const auto target = [&](std::size_t i) {
    if (!batch.weights.empty() && batch.weights[i] == 0) return -1;
    if (!batch.targets.empty()) return segment(i) == 0 ? -1 : batch.targets[i];
    return continues(i) ? inputs.tokens[i + 1] : -1;
  };
  std::vector<std::int32_t> positions = batch.positions;
  if (positions.empty()) {
    positions.assign(inputs.tokens.size(), 0);
    for (std::size_t i = 0; i + 1 < positions.size(); ++i)
      if (continues(i)) positions[i + 1] = positions[i] + 1;
  }
  const auto ids = [&](const std::function<std::int32_t(std::size_t)>& value_at) {
    return laid_out(inputs, DType::i32, value_at);
  };
  Batch made{ids([&](std::size_t i) { return inputs.tokens[i]; }),
             ids([&](std::size_t i) { return std::max(0, target(i)); }),
             ids([&](std::size_t i) { return positions[i]; }), ids(segment),
             ids([&](std::size_t i) { return target(i) < 0 ? 0 : segment(i); })};
  if (!batch.weights.empty())
    made.weights = laid_out<float>(inputs, DType::f32, [&](std::size_t i) { return batch.weights[i]; });
  return made;
}

// Error(usage) for what follows a batch's tokens.
void require_whole(const char* what, const TrainBatch& batch, std::int64_t vocabulary) {
  require_whole(what, batch.inputs, vocabulary);
  const std::size_t tokens = batch.inputs.tokens.size();
  const auto require_size = [&](const char* name, std::size_t size) {
    if (size != 0 && size != tokens)
      fail_usage("[engine] {}: {} {}, expected one for each of {} tokens", what, size, name, tokens);
  };
  require_size("targets", batch.targets.size());
  require_size("segments", batch.segments.size());
  require_size("positions", batch.positions.size());
  require_size("weights", batch.weights.size());
  for (const std::int32_t target : batch.targets) {
    if (target >= vocabulary)
      fail_usage("[engine] {}: target {} is outside the vocabulary of {}", what, target, vocabulary);
  }
  for (const auto& [name, values] : {std::pair("segment", &batch.segments), {"position", &batch.positions}}) {
    for (const std::int32_t value : *values) {
      if (value < 0) fail_usage("[engine] {}: {} {}: expected 0 or more", what, name, value);
    }
  }
  for (const float weight : batch.weights) {
    if (!std::isfinite(weight)) fail_usage("[engine] {}: weight {}: expected a number", what, weight);
  }
}

}  // namespace

Batch Engine::Impl::batch_to_train(const char* what, const TrainBatch& batch) const {
  refuse_packed(what, "open the engine with weight_format=dense");
  require_whole(what, batch, model.vocab);
  if (!batch.weights.empty()) {
    const auto refuse = [&](const char* why) {
      fail_usage("[engine] {}: weights: expected none, because {}", what, why);
    };
    if (config.get_bool("use_dpo")) refuse("use_dpo=true has a loss over pairs");
    if (model.trains_indexer_alone()) refuse("only the indexers are trained");
    if (model.predictions > 0) refuse("the targets of prediction layers have none; set mtp_num_layers=0");
  }
  BatchSizes sizes = batch_sizes(config, mesh);
  const std::int64_t passes = sizes.step / sizes.micro, rows = batch.inputs.rows;
  if (rows % passes != 0)
    fail_usage("[engine] {}: {} sequences, expected a multiple of {}, the microbatches of a step", what, rows,
               passes);
  sizes.step = sizes.eval = rows;
  sizes.micro = rows / passes;
  sizes.sequence = batch.inputs.length;
  check_layout(config, mesh, model, sizes);
  return batch_of(batch);
}

Trainer& Engine::Impl::trainer(Context& context, const TrainConfig& training) {
  RankState& own = *state(context);
  if (!own.trainer) own.trainer.emplace(context, model, training, own.parameters);
  return *own.trainer;
}

TrainStep Engine::Impl::run_step(const std::function<StepResult(Trainer&, std::int64_t)>& run) {
  const TrainConfig config_of_training = training();
  TrainStep told;
  loop->run([&](Context& context) {
    Trainer& on_rank = trainer(context, config_of_training);
    const std::int64_t step = state(context)->steps;
    const StepResult result = run(on_rank, step);
    ++state(context)->steps;
    if (!speaks(context)) return;
    told = {.step = step,
            .loss = result.loss,
            .cross_entropy = result.lm_loss,
            .balance_loss = result.balance_loss,
            .gradient_norm = result.raw_grad_norm,
            .learning_rate = result.learning_rate,
            .targets = result.total_weights,
            .skipped = result.bad};
  });
  has_gradients = false;
  return told;
}

TrainStep Engine::train_step(const TrainBatch& batch) {
  Impl& own = *impl_;
  const Batch rows = own.batch_to_train("train_step", batch);
  const std::int64_t expected = batch_sizes(own.config, own.mesh).step;
  if (batch.inputs.rows != expected)
    fail_usage(
        "[engine] train_step: {} sequences, expected {} (per_device_batch_size={} on {} ranks, "
        "gradient_accumulation_steps={})",
        batch.inputs.rows, expected, own.config.get_float("per_device_batch_size"), ranks(),
        own.config.get_int("gradient_accumulation_steps"));
  if (own.has_gradients)
    fail_usage("[engine] train_step: gradients of forward_backward() wait for optimizer_step()");
  return own.run_step([&](Trainer& trainer, std::int64_t step) { return trainer.step(step, rows); });
}

Loss Engine::forward_backward(const TrainBatch& batch) {
  Impl& own = *impl_;
  const Batch rows = own.batch_to_train("forward_backward", batch);
  const TrainConfig training = own.training();
  Loss told;
  own.loop->run([&](Context& context) {
    const StepResult result =
        own.trainer(context, training).forward_backward(own.state(context)->steps, rows);
    if (own.speaks(context)) told = {result.loss, result.lm_loss, result.balance_loss, result.total_weights};
  });
  own.has_gradients = true;
  return told;
}

TrainStep Engine::optimizer_step(std::optional<double> learning_rate) {
  impl_->require_gradients("optimizer_step");
  if (learning_rate && !(*learning_rate >= 0))
    fail_usage("[engine] optimizer_step: learning_rate={}: expected 0 or more", *learning_rate);
  return impl_->run_step(
      [&](Trainer& trainer, std::int64_t step) { return trainer.optimizer_step(step, learning_rate); });
}

void Engine::drop_gradients() {
  Impl& own = *impl_;
  own.loop->run([&](Context& context) {
    if (own.state(context)->trainer) own.state(context)->trainer->drop_gradients();
  });
  own.has_gradients = false;
}

void Engine::Impl::require_gradients(const char* what) const {
  if (!has_gradients) fail_usage("[engine] {}: expected a forward_backward() since the last step", what);
}

std::vector<float> Engine::read_gradient(std::string_view name) {
  Impl& own = *impl_;
  const ParameterSpec& spec = own.spec(name);
  own.require_gradients("read_gradient");
  if (!spec.trained) fail_usage("[engine] read_gradient: {} is not trained", name);
  return own.whole(spec, [](Context& context, const Parameter& parameter) {
    const Value& value = *parameter.array.value();
    const Tensor sum = value.grad.defined() ? value.grad.cast(DType::f32).clone()
                                            : context.zeros(DType::f32, value.info.local);
    const ProcessGroup& holders = holders_of(context, parameter);
    if (holders.size() > 1) context.comm->all_reduce(holders, sum.view());
    return sum;
  });
}

std::vector<float> Engine::token_log_probs(const TrainBatch& batch) {
  Impl& own = *impl_;
  require_whole("token_log_probs", batch, vocabulary());
  TrainBatch unweighted = batch;
  unweighted.weights.clear();
  BatchSizes sizes{batch.inputs.rows, batch.inputs.rows, batch.inputs.rows, batch.inputs.length};
  check_layout(own.config, own.mesh, own.without, sizes);
  const Batch rows = batch_of(unweighted);
  const ModelConfig model = for_evaluation(own.without);
  const PipelineSchedule schedule = own.training().schedule_of_stages;
  std::vector<float> log_probs;
  own.loop->run([&](Context& context) {
    NoGrad no_grad(context);
    Tensor whole = context.empty(DType::f32, {batch.inputs.rows, batch.inputs.length});
    const DeviceBatch placed = place_batch(context, rows, 0, model.chunk_of_documents());
    const Shape shape{batch.inputs.rows, batch.inputs.length, model.emb};
    Pipeline(context, schedule, model.dtype, shape, block_sharding(*context.rules, shape))
        .evaluate([&](const PipelinePass& pass, const Array& input) {
          BlockOptions options;
          options.block = pass.block;
          options.input = input;
          const HiddenStates out =
              hidden_states(context, model, own.state(context)->parameters, placed, options);
          if (out.final_hidden.defined())
            whole = replicate(context, log_probs_of(context, model, own.state(context)->parameters, placed,
                                                    out.final_hidden))
                        .tensor();
          return StageOutput{out.output, {}};
        });
    if (context.stage.count > 1)
      context.comm->broadcast(context.stage.across, context.stage.count - 1, whole.view());
    const Tensor host = read_back(context, whole, "log-probabilities",
                                  [&] { return Tensor(Memory(), DType::f32, whole.shape()); });
    if (own.speaks(context)) log_probs.assign(host.span<float>().begin(), host.span<float>().end());
  });
  return log_probs;
}

Loss Engine::loss(const TrainBatch& batch) {
  const std::vector<float> log_probs = token_log_probs(batch);
  const Batch rows = batch_of(batch);
  const auto segments = rows.targets_segmentation.span<std::int32_t>();
  double sum = 0, targets = 0;
  for (std::size_t i = 0; i < log_probs.size(); ++i) {
    if (segments[i] == 0) continue;
    sum -= (batch.weights.empty() ? 1.0 : static_cast<double>(batch.weights[i])) *
           static_cast<double>(log_probs[i]);
    targets += 1;
  }
  const double mean = targets > 0 ? sum / targets : 0;
  return {mean, mean, 0, targets};
}

}  // namespace switchyard

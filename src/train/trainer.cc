#include "train/trainer.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include "autograd/ahead.h"
#include "autograd/op.h"
#include "kernels/pointwise/strided_copy.h"
#include "ops/reshard.h"
#include "train/step_inputs.h"

namespace switchyard {
namespace {

// Rows of the batch that have a token. An abstract batch has all.
double count_filled_rows(const Batch& batch) {
  const Tensor& segments = batch.inputs_segmentation;
  if (segments.abstract()) return static_cast<double>(segments.dim(0));
  const auto length = static_cast<std::size_t>(segments.dim(1));
  const std::span<const std::int32_t> all = segments.span<std::int32_t>();
  double filled = 0;
  for (std::size_t at = 0; at < all.size(); at += length) {
    const auto row = all.subspan(at, length);
    filled += std::ranges::any_of(row, [](std::int32_t s) { return s != 0; }) ? 1 : 0;
  }
  return filled;
}

}  // namespace

Trainer::Trainer(Context& context, ModelConfig model, TrainConfig config, Parameters parameters)
    : context_(context),
      model_(std::move(model)),
      eval_model_(for_evaluation(model_)),
      config_(std::move(config)),
      parameters_(std::move(parameters)),
      updater_(context_, config_.update, parameters_),
      bad_steps_(config_.bad_steps),
      statistics_(context_, model_, config_.accumulation * config_.stage_microbatches,
                  config_.log_required_factor || config_.log_load_ratio) {
  if (config_.preference && config_.preference->kind == PreferenceKind::dpo) {
    reference_model_ = model_;
    reference_model_->adapter = nullptr;
  }
  CHECK(context_.stage.count > 1 || config_.stage_microbatches == 1, "{} microbatches for one stage",
        config_.stage_microbatches);
}

void Trainer::trace_routing(std::shared_ptr<StepRouting> routing) {
  model_.moe_execution.tape = routing;
  routing_ = std::move(routing);
}

Trainer::UnderRules::UnderRules(Trainer& trainer, const AxisRules& rules)
    : trainer_(trainer), rules_(trainer.context_.rules) {
  trainer_.moved_ = trainer_.parameters_.under(trainer_.context_, rules);
  trainer_.context_.rules = &rules;
}

Trainer::UnderRules::~UnderRules() {
  trainer_.context_.rules = rules_;
  trainer_.moved_.reset();
}

Pipeline Trainer::pipeline(std::int64_t rows, std::int64_t length) const {
  const Shape shape{rows, length, model_.emb};
  return Pipeline(context_, config_.schedule_of_stages, model_.dtype, shape,
                  block_sharding(*context_.rules, shape));
}

Trainer::OwnBatch Trainer::read_own(const BatchRows& batch, std::int64_t microbatches) {
  auto phase = timer_.scope("data");
  const PhaseMark mark(context_.comm->position(), "data");
  OwnBatch result;
  result.rows = batch.rows / microbatches;
  const OwnRows own = own_rows(context_, {result.rows, batch.sequence});
  for (std::int64_t i = 0; i < microbatches; ++i) {
    result.micro.push_back(batch.read(i * result.rows + own.begin, i * result.rows + own.end));
    result.targets += count_targets(result.micro.back());
    result.further_targets += count_further_targets(result.micro.back(), model_.predictions);
    result.filled_rows += count_filled_rows(result.micro.back());
    if (!config_.preference || context_.abstract()) continue;
    const PairCounts pairs = count_pairs(result.micro.back().targets_segmentation);
    result.pairs.pairs += pairs.pairs;
    result.pairs.chosen_targets += pairs.chosen_targets;
  }
  double counts[] = {result.targets, result.filled_rows, result.further_targets};
  if (config_.preference && !own.axes.empty()) {
    double of_pairs[] = {result.pairs.pairs, result.pairs.chosen_targets};
    context_.comm->all_reduce(context_.group(own.axes), host_view(std::span<double>(of_pairs)));
    result.pairs = {of_pairs[0], of_pairs[1]};
  }
  if (!own.axes.empty())
    context_.comm->all_reduce(context_.group(own.axes),
                              host_view(std::span<double>(counts, model_.predictions > 0 ? 3 : 2)));
  result.targets = counts[0], result.filled_rows = counts[1], result.further_targets = counts[2];
  if (context_.abstract()) {
    result.targets = static_cast<double>(batch.rows * batch.sequence);
    result.filled_rows = static_cast<double>(batch.rows);
    result.further_targets = result.targets * static_cast<double>(model_.predictions);
  }
  return result;
}

double Trainer::balance_share(const OwnBatch& own) const {
  const std::int64_t count = config_.accumulation * config_.stage_microbatches;
  const double counted_rows = model_.moe_execution.balance.count_padding
                                  ? static_cast<double>(own.rows * count)
                                  : std::max(1.0, own.filled_rows);
  return static_cast<double>(own.rows) / counted_rows;
}

double Trainer::divisor(double targets) const {
  return targets + (model_.compat || targets == 0 ? 1e-8 : 0.0);
}

void Trainer::ask_for_pairs(const OwnBatch& own, const DeviceBatch& batch, LossOptions& options) {
  options.preference = config_.preference;
  options.preference->pairs = divisor(own.pairs.pairs);
  options.preference->chosen_targets = divisor(own.pairs.chosen_targets);
  if (!reference_model_) return;
  NoGrad no_grad(context_);
  options.reference = target_log_probs(context_, *reference_model_, parameters_, batch);
}

Trainer::PassResults Trainer::run_passes(std::int64_t step, std::int64_t length, const OwnBatch& own,
                                         const StepInputs* inputs) {
  const std::int64_t count = config_.accumulation * config_.stage_microbatches;
  const std::int64_t rows = own.rows;
  const bool piped = context_.stage.count > 1;
  PassResults passes;
  const auto keep_loss = [&](const Array& loss, std::size_t place) {
    if (!loss.defined()) return;
    passes.losses.push_back(loss);
    passes.places.push_back(place);
  };
  const std::vector<std::int64_t> moe_layers = model_.moe_layers();
  passes.layer_bytes.assign(static_cast<std::size_t>(model_.depth()), 0);
  const auto run_stage = [&](const PipelinePass& pass, const Array& input) {
    const std::int64_t i = pass.microbatch;
    auto phase = timer_.scope("forward");
    const PhaseMark mark(context_.comm->position(), "forward");
    const auto number = static_cast<std::size_t>(i);
    const DeviceBatch placed = inputs == nullptr
                                   ? place_own_rows(context_, own.micro[number], rows, model_.predictions,
                                                    model_.chunk_of_documents())
                                   : inputs->batches()[number];
    LossOptions options;
    options.step = step * config_.accumulation + i / config_.stage_microbatches;
    options.first_row = i % config_.stage_microbatches * rows;
    options.target_count = divisor(own.targets);
    options.further_count = divisor(own.further_targets);
    if (inputs != nullptr) {
      options.target_count_there = inputs->target_count();
      options.further_count_there = inputs->further_count();
    }
    options.head_scores = config_.qk_clip > 0;
    options.balance_share = balance_share(own);
    options.block = pass.block;
    options.input = input;
    if (config_.preference) ask_for_pairs(own, placed, options);
    if (routing_ != nullptr) routing_->begin_pass(i * rows);
    Losses out = training_losses(context_, model_, parameters_, placed, options);
    if (routing_ != nullptr) routing_->end_pass();
    keep_loss(out.lm_loss, kLmLoss);
    keep_loss(out.z_loss, kZLoss);
    keep_loss(out.prediction_loss, kPredictionLoss);
    keep_loss(out.indexer_loss, kIndexerLoss);
    if (out.preference) {
      keep_loss(out.preference->chosen_reward, kChosenReward);
      keep_loss(out.preference->rejected_reward, kRejectedReward);
      keep_loss(out.preference->preferred, kPreferred);
    }
    if (!piped) {
      keep_loss(out.loss, kLoss);
      keep_loss(out.balance_loss, kBalanceLoss);
    }
    for (std::size_t l = 0; l < out.layer_balance.size() && piped; ++l)
      keep_loss(out.layer_balance[l],
                kLosses + static_cast<std::size_t>(std::ranges::lower_bound(moe_layers, out.loads[l].layer) -
                                                   moe_layers.begin()));
    std::ranges::move(out.scores, std::back_inserter(passes.scores));
    std::ranges::move(out.loads, std::back_inserter(passes.loads));
    for (std::size_t l = 0; l < out.layer_bytes.size(); ++l) {
      if (out.layer_bytes[l] != 0) passes.layer_bytes[l] = out.layer_bytes[l];
    }
    return StageOutput{out.output, out.loss};
  };
  if (context_.ahead != nullptr) context_.ahead->begin_step();
  pipeline(rows, length).train(count, run_stage, [&](const std::function<void()>& go_back) {
    auto phase = timer_.scope("backward");
    const PhaseMark mark(context_.comm->position(), "backward");
    go_back();
    context_.comm->position().layer = -1;
  });
  if (context_.ahead != nullptr) context_.ahead->end_step(context_);
  return passes;
}

Trainer::EvalResult Trainer::evaluate(const BatchRows& batch) {
  const OwnBatch own = read_own(batch, 1);
  const double targets = own.targets;
  LossOptions options;
  options.target_count = std::max(1.0, targets);
  double loss = 0;
  forward_only(eval_model_, own, options, [&](const Losses& out, const Stage::Block&) {
    if (!out.lm_loss.defined()) return;
    const Tensor both = context_.zeros(DType::f32, {2});
    strided_copy(*context_.pool, out.lm_loss.tensor().view().reshaped({1}), both.view().rows(0, 1));
    if (out.z_loss.defined())
      strided_copy(*context_.pool, out.z_loss.tensor().view().reshaped({1}), both.view().rows(1, 2));
    const Tensor host =
        read_back(context_, both, "losses", [&] { return Memory().zeros(DType::f32, both.shape()); });
    const auto values = host.span<float>();
    loss = unsigned_nan((static_cast<double>(values[0]) - static_cast<double>(values[1])) * targets);
  });
  if (context_.stage.count > 1)
    context_.comm->all_reduce(context_.stage.across, host_view(std::span(&loss, 1)));
  return {loss, targets};
}

Tensor Trainer::logits(const BatchRows& batch) {
  Tensor logits = context_.empty(DType::f32, {batch.rows, batch.sequence, model_.vocab});
  LossOptions options;
  options.keep_logits = true;
  forward_only(model_, read_own(batch, 1), options, [&](const Losses& out, const Stage::Block&) {
    if (out.logits.defined()) logits = replicate(context_, out.logits).tensor();
  });
  if (context_.stage.count > 1) {
    context_.comm->broadcast(context_.stage.across, context_.stage.count - 1, logits.view());
  }
  return read_back(context_, logits, "logits", [&] { return Tensor(Memory(), DType::f32, logits.shape()); });
}

void Trainer::forward_only(const ModelConfig& model, const OwnBatch& batch, LossOptions options,
                           const std::function<void(const Losses&, const Stage::Block&)>& use,
                           std::size_t microbatch) {
  NoGrad no_grad(context_);
  const Batch& own = batch.micro[microbatch];
  pipeline(batch.rows, own.inputs.dim(1)).evaluate([&](const PipelinePass& pass, const Array& input) {
    options.block = pass.block;
    options.input = input;
    const Losses out =
        training_losses(context_, model, moved_ ? *moved_ : parameters_,
                        place_own_rows(context_, own, batch.rows, 0, model_.chunk_of_documents()), options);
    use(out, context_.stage.block(pass.block));
    return StageOutput{out.output, out.loss};
  });
}

}  // namespace switchyard

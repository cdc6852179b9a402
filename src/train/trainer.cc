#include "train/trainer.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include "autograd/ahead.h"
#include "autograd/op.h"
#include "kernels/pointwise/strided_copy.h"
#include "models/blocks/layers.h"
#include "moe/balance.h"
#include "moe/dispatch/common.h"
#include "ops/reshard.h"
#include "train/device_step.h"

namespace switchyard {
namespace {

// Injects the fault that a test asks for with SWITCHYARD_FAULT (parallel/comm/fault.h): `change` is applied
// to the first element of x, through host memory.
void change_first(const Tensor& x, const std::function<void(const Tensor& element)>& change) {
  const Tensor first = x.reshaped({x.size()}).slice_rows(0, 1), host = to_host(first).clone();
  change(host);
  copy(host.view(), first.view());
}

void break_a_gradient(const Parameters& parameters) {
  for (const Parameter& p : parameters.all()) {
    const Tensor& grad = p.array.value()->grad;
    if (!grad.defined()) continue;
    return change_first(grad, [](const Tensor& x) {
      x.dtype() == DType::f32 ? void(x.data<float>()[0] = NAN) : void(x.data<bfloat16>()[0] = bfloat16(NAN));
    });
  }
}

void flip_a_bit(const Parameters& parameters) {
  change_first(parameters.all().front().array.tensor(), [](const Tensor& x) { x.raw()[0] ^= std::byte{1}; });
}

// People and files get "nan", whatever sign the machine gave it.
double unsigned_nan(double x) {
  return std::isnan(x) ? NAN : x;
}

double norm_of(const std::vector<float>& x) {
  double squares = 0;
  for (const float v : x) squares += static_cast<double>(v) * static_cast<double>(v);
  return std::sqrt(squares);
}

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

UpdateConfig update_config(const Config& c, const ModelConfig& model) {
  UpdateConfig u;
  u.layers = model.depth();
  const bool muon = c.get_string("opt_type") == "muon";
  u.optimizer.type = muon ? "adamw" : c.get_string("opt_type");
  u.optimizer.b1 = c.get_float("adam_b1");
  u.optimizer.b2 = c.get_float("adam_b2");
  u.optimizer.eps = c.get_float("adam_eps");
  u.optimizer.eps_root = c.get_float("adam_eps_root");
  u.optimizer.weight_decay = c.get_float("adam_weight_decay");
  u.optimizer.mu_dtype =
      c.is_none("mu_dtype") ? model.weight_dtype : parse_float_dtype(c.get_string("mu_dtype"), "mu_dtype");
  if (muon) {
    u.optimizer.nesterov = true;
    u.muon = MuonConfig{.beta = c.get_float("muon_beta"),
                        .weight_decay = c.get_float("muon_weight_decay"),
                        .eps = u.optimizer.eps,
                        .consistent_rms = {},
                        .mu_dtype = u.optimizer.mu_dtype};
    if (!c.is_none("muon_consistent_rms")) u.muon->consistent_rms = c.get_float("muon_consistent_rms");
    check(*u.muon);
    u.muon_routers = c.get_bool("muon_include_routers");
  }
  u.grad_dtype = parse_float_dtype(c.get_string("grad_dtype"), "grad_dtype");
  u.state_on_host = c.get_bool("optimizer_memory_host_offload");
  u.decay_exclude = c.get_strings("weight_decay_exclude");
  u.decay_mask = NamePatterns("adamw_mask", c.get_strings("adamw_mask"));
  if (muon && !u.decay_mask.empty())
    fail_usage("[optim] adamw_mask: opt_type=muon takes none, as in the reference; use weight_decay_exclude");
  return u;
}

}  // namespace

TrainConfig train_config(const Config& c, const ModelConfig& model, int stages) {
  pipeline_repeats(c, stages);
  if (stages > 1 && model.trains_indexer_alone())
    fail_usage(
        "[pipeline] indexer_sparse_training=false: a stage has no gradient to give to the one before where "
        "indexers learn alone; set ici_pipeline_parallelism=1 or indexer_sparse_training=true");
  TrainConfig t;
  t.update = update_config(c, model);
  t.schedule.type = c.get_string("lr_schedule_type");
  t.schedule.learning_rate = c.get_float("learning_rate");
  t.schedule.final_fraction = c.get_float("learning_rate_final_fraction");
  t.schedule.warmup_steps_fraction = c.get_float("warmup_steps_fraction");
  t.schedule.wsd_decay_steps_fraction = c.get_float("wsd_decay_steps_fraction");
  t.schedule.wsd_decay_style = c.get_string("wsd_decay_style");
  const std::int64_t schedule_steps = c.get_int("learning_rate_schedule_steps");
  t.schedule.schedule_steps = schedule_steps > 0 ? schedule_steps : c.get_int("steps");
  check(t.schedule);
  t.bad_steps = bad_step_config(c);
  t.clip = c.get_float("gradient_clipping_threshold");
  if (c.get_bool("use_qk_clip")) {
    if (!model.mla)
      fail_usage("[optim] use_qk_clip=true: expected attention_type=mla, whose weights it scales");
    t.qk_clip = c.get_float("qk_clip_threshold");
  }
  t.log_bias_norms = c.get_bool("log_moe_bias_norms");
  t.log_required_factor = c.get_bool("log_required_ragged_buffer_factor");
  t.log_load_ratio = c.get_bool("moe_log_max_load_ratio");
  t.accumulation = c.get_int("gradient_accumulation_steps");
  t.stage_microbatches = pipeline_microbatches(c, stages);
  t.schedule_of_stages = parse_pipeline_schedule(c.get_string("pipeline_schedule"));
  return t;
}

double LayerStatistics::max_over_mean() const {
  const double sum = std::accumulate(rows.begin(), rows.end(), 0.0);
  return sum > 0 ? *std::max_element(rows.begin(), rows.end()) * static_cast<double>(rows.size()) / sum : 0.0;
}

double LayerStatistics::entropy() const {
  const double sum = std::accumulate(rows.begin(), rows.end(), 0.0);
  double h = 0;
  for (double r : rows) h -= r > 0 ? r / sum * std::log(r / sum) : 0.0;
  return h;
}

double LayerStatistics::rows_dropped() const {
  return std::accumulate(dropped.begin(), dropped.end(), 0.0);
}

Trainer::Trainer(Context& context, ModelConfig model, TrainConfig config, Parameters parameters)
    : context_(context),
      model_(std::move(model)),
      eval_model_(for_evaluation(model_)),
      config_(std::move(config)),
      parameters_(std::move(parameters)),
      updater_(context_, config_.update, parameters_),
      bad_steps_(config_.bad_steps) {
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

StepResult Trainer::step(std::int64_t step, const BatchRows& batch) {
  CHECK(!moved_, "step {} under the rules of an evaluation", step);
  StepResult result = needs_host().empty() ? step_on_device(step, batch) : step_by_host(step, batch);
  if (result.bad.empty()) parameters_.raise_version();
  return result;
}

StepResult Trainer::step_by_host(std::int64_t step, const BatchRows& batch) {
  say_why_host();
  StepResult result;
  Position& position = context_.comm->position();
  position.step = step;
  result.learning_rate = learning_rate(config_.schedule, step);
  accumulate(step, batch, result);
  if (context_.suffers(Fault::Kind::nan, "gradients")) break_a_gradient(parameters_);
  if (on_gradients_) on_gradients_(parameters_);
  judge(step, result);
  const double factor = clip_factor(result.raw_grad_norm);
  result.grad_norm = result.raw_grad_norm * factor;
  auto phase = timer_.scope("optimizer");
  const PhaseMark mark(position, "optimizer");
  if (result.bad.empty())
    update(step, result, factor);
  else
    updater_.drop_gradients();
  if (context_.suffers(Fault::Kind::flip, "optimizer")) flip_a_bit(parameters_);
  result.param_norm = updater_.weight_norm();
  say_origin(batch, updater_.own_gradient_squares(), result);
  return result;
}

// Sums the gradients, and lets all ranks agree on whether the step is good.
void Trainer::judge(std::int64_t step, StepResult& result) {
  auto phase = timer_.scope("gradients");
  const PhaseMark mark(context_.comm->position(), "gradients");
  updater_.reduce_gradients();
  // The loss is the same on all ranks, but where one of them is broken.
  const bool speaks = context_.comm->rank() == 0 || !std::isfinite(result.loss);
  std::vector<double> sums = updater_.gradient_squares();
  sums.push_back(speaks ? result.loss : 0.0);
  sum_over_run(context_, sums);
  const double norm = std::sqrt(std::accumulate(sums.begin(), sums.end() - 1, 0.0));
  judge_by(step, norm, sums.back(), result);
}

void Trainer::judge_by(std::int64_t step, double norm, double loss, StepResult& result) {
  const StepHealth health{.loss = loss,
                          .gradient_norm = norm,
                          .clipped_norm = config_.clip > 0 ? std::min(norm, config_.clip) : norm};
  result.raw_grad_norm = unsigned_nan(health.gradient_norm);
  result.loss = unsigned_nan(health.loss);
  result.bad = bad_steps_.judge(step, health);
  result.skipped = bad_steps_.skipped();
}

double Trainer::clip_factor(double norm) const {
  return config_.clip > 0 && norm >= config_.clip ? config_.clip / norm : 1.0;
}

void Trainer::update(std::int64_t step, StepResult& result, double factor) {
  updater_.update(step, result.learning_rate, factor);
  if (model_.bias_update_rate > 0) update_bias(result);
  if (config_.qk_clip > 0) clip_scores(result);
  updater_.publish();
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
  }
  double counts[] = {result.targets, result.filled_rows, result.further_targets};
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

Trainer::Passes Trainer::run_passes(std::int64_t step, std::int64_t length, const OwnBatch& own,
                                    const StepInputs* inputs) {
  for (auto& p : parameters_.all()) p.array.value()->grad = Tensor();
  const std::int64_t count = config_.accumulation * config_.stage_microbatches;
  const std::int64_t rows = own.rows;
  const bool piped = context_.stage.count > 1;
  Passes passes;
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
    ForwardOptions options;
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
    if (routing_ != nullptr) routing_->begin_pass(i * rows);
    ForwardResult out = forward(context_, model_, parameters_, placed, options);
    if (routing_ != nullptr) routing_->end_pass();
    keep_loss(out.lm_loss, kLmLoss);
    keep_loss(out.z_loss, kZLoss);
    keep_loss(out.prediction_loss, kPredictionLoss);
    keep_loss(out.indexer_loss, kIndexerLoss);
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

void Trainer::accumulate(std::int64_t step, const BatchRows& batch, StepResult& result) {
  const OwnBatch own = read_own(batch, config_.accumulation * config_.stage_microbatches);
  result.total_weights = own.targets;
  if (routing_ != nullptr) routing_->begin_step(step, batch);
  Passes passes = run_passes(step, batch.sequence, own, nullptr);
  result.layer_bytes = passes.layer_bytes;
  add_losses(read_losses(passes.losses), passes, own, result);
  const PhaseMark mark(context_.comm->position(), "statistics");
  read_loads(context_, passes.loads);
  gather_statistics(passes.loads, result);
  if (routing_ != nullptr) {
    StepRouting::Result routing = routing_->end_step(context_);
    if (routing_->replays()) result.routing = routing.agreement;
    result.routing_records = std::move(routing.records);
  }
  if (config_.qk_clip > 0) result.scores = largest_scores_of_stacks(context_, model_, passes.scores);
}

void Trainer::add_losses(std::span<const double> values, const Passes& passes, const OwnBatch& own,
                         StepResult& result) {
  const bool piped = context_.stage.count > 1;
  const std::vector<std::int64_t> moe_layers = model_.moe_layers();
  std::vector<double> sums(kLosses + (piped ? moe_layers.size() : 0), 0.0);
  for (std::size_t i = 0; i < values.size(); ++i) sums[passes.places[i]] += values[i];
  const PhaseMark mark(context_.comm->position(), "statistics");
  if (piped) {
    context_.comm->all_reduce(context_.stage.across, host_view(std::span(sums)));
    if (!moe_layers.empty())
      sums[kBalanceLoss] = std::accumulate(sums.begin() + kLosses, sums.end(), 0.0) * balance_share(own) /
                           layers_averaged(model_);
    sums[kLoss] = sums[kLmLoss] + sums[kPredictionLoss] + sums[kBalanceLoss] + sums[kIndexerLoss];
  }
  for (double& sum : sums) sum = unsigned_nan(sum);
  result.loss = context_.suffers(Fault::Kind::nan, "forward") ? NAN : sums[kLoss];
  result.lm_loss = sums[kLmLoss], result.z_loss = sums[kZLoss];
  result.balance_loss = sums[kBalanceLoss], result.prediction_loss = sums[kPredictionLoss];
  result.indexer_loss = sums[kIndexerLoss];
}

std::vector<double> Trainer::read_losses(std::span<const Array> losses) {
  if (losses.empty()) return {};  // of a stage in the middle of a dense model
  const auto count = static_cast<std::int64_t>(losses.size());
  const Tensor together = context_.zeros(DType::f32, {count});  // 0 for a loss that this rank does not have
  for (std::int64_t i = 0; i < count; ++i) {
    const Array& loss = losses[static_cast<std::size_t>(i)];
    if (loss.defined())
      strided_copy(*context_.pool, loss.tensor().view().reshaped({1}), together.view().rows(i, i + 1));
  }
  const Tensor host =
      read_back(context_, together, "losses", [&] { return Memory().zeros(DType::f32, together.shape()); });
  const auto values = host.span<float>();
  return {values.begin(), values.end()};
}

void Trainer::gather_statistics(std::span<LayerLoad> loads, StepResult& result) {
  const auto experts = static_cast<std::size_t>(model_.moe.experts);
  const std::vector<std::int64_t> numbers = model_.moe_layers();
  const std::size_t layers = numbers.size();
  if (layers == 0) return;
  const bool counts_passes =
      model_.moe_execution.further_passes && model_.moe_execution.ragged_buffer_factor > 0;
  const std::size_t of_layer = 2 * experts + (counts_passes ? 2 : 0);
  std::vector<double> sums(layers * of_layer, 0.0);
  for (const auto& load : loads) {
    const std::size_t at = place_of(load.layer) * of_layer;
    if (counts_passes && context_.rank == 0) {  // all ranks of a stage took as many
      double &most = sums[at + 2 * experts], &overflows = sums[at + 2 * experts + 1];
      most = std::max(most, static_cast<double>(load.passes));
      overflows += load.passes > 1 ? 1 : 0;
    }
    for (std::size_t e = 0; e < experts; ++e) {
      sums[at + e] += load.rows[e];
      sums[at + experts + e] += load.dropped[e];
    }
  }
  sum_over_run(context_, sums);
  const auto ranks =
      static_cast<std::size_t>(context_.mesh->product(expert_axes(context_, model_.moe.experts)));
  for (std::size_t l = 0; l < layers; ++l) {
    const auto at = sums.begin() + static_cast<std::ptrdiff_t>(l * of_layer),
               middle = at + static_cast<std::ptrdiff_t>(experts),
               end = middle + static_cast<std::ptrdiff_t>(experts);
    LayerStatistics layer{numbers[l], {at, middle}, {middle, end}, {}};
    if (counts_passes) {
      layer.passes = static_cast<std::int64_t>(end[0]), layer.overflows = static_cast<std::int64_t>(end[1]);
      passes_.runs += config_.accumulation * config_.stage_microbatches;
      passes_.overflows += layer.overflows;
      passes_.most = std::max(passes_.most, layer.passes);
    }
    for (std::size_t r = 0; r < ranks && ranks > 1; ++r) {
      double rows = 0;
      for (std::size_t e = r * experts / ranks; e < (r + 1) * experts / ranks; ++e)
        rows += layer.rows[e] - layer.dropped[e];
      layer.rows_per_rank.push_back(rows);
    }
    result.layers.push_back(std::move(layer));
  }
  if (config_.log_required_factor || config_.log_load_ratio) gather_shard_loads(loads, result);
}

std::size_t Trainer::place_of(std::int64_t layer) const {
  const std::vector<std::int64_t> numbers = model_.moe_layers();
  return static_cast<std::size_t>(std::ranges::lower_bound(numbers, layer) - numbers.begin());
}

void Trainer::gather_shard_loads(std::span<const LayerLoad> loads, StepResult& result) {
  std::vector<float> most(result.layers.size(), 0);
  for (const LayerLoad& load : loads) {
    float& here = most[place_of(load.layer)];
    here = std::max(here, static_cast<float>(load.shard_load));
  }
  max_over_run(context_, most);
  for (std::size_t l = 0; l < most.size(); ++l) result.layers[l].shard_load = most[l];
}

void Trainer::update_bias(StepResult& result) {
  for (LayerStatistics& layer : result.layers) {
    const std::string name = fmt::format("layers.{}.moe.gate_bias", layer.layer);
    const std::vector<float> increment = bias_increment(layer.rows, model_.bias_update_rate);
    if (config_.log_bias_norms) {
      layer.bias_norm = norm_of(host_copy(name));
      layer.bias_update_norm = norm_of(increment);
    }
    updater_.add(name, increment);
  }
}

// A parameter that is whole on every rank of its stage, wherever that is.
std::vector<float> Trainer::host_copy(const std::string& name) {
  const bool here = parameters_.contains(name);
  const Tensor value =
      here ? parameters_[name].tensor().clone() : context_.zeros(DType::f32, {model_.moe.experts});
  if (context_.stage.count > 1) context_.comm->all_reduce(context_.stage.across, value.view());
  const Tensor host = read_back(context_, value, "router bias",
                                [&] { return Memory().zeros(DType::f32, {model_.moe.experts}); });
  return {host.span<float>().begin(), host.span<float>().end()};
}

void Trainer::clip_scores(const StepResult& result) {
  if (!(largest_of(result.scores) + 1e-6 > config_.qk_clip)) return;
  for (std::int64_t i = 0; i < model_.depth(); ++i) {
    const std::vector<float> factors = clip_factors(result.scores[stack_of(model_, i)], config_.qk_clip);
    const std::string name = fmt::format("layers.{}.attention.", i);
    updater_.scale_columns(name + "wq_b", clip_columns(model_, true, factors));
    updater_.scale_columns(name + "wkv_b", clip_columns(model_, false, factors));
  }
}

Trainer::EvalResult Trainer::evaluate(const BatchRows& batch) {
  const OwnBatch own = read_own(batch, 1);
  const double targets = own.targets;
  ForwardOptions options;
  options.target_count = std::max(1.0, targets);
  double loss = 0;
  forward_only(eval_model_, own, options, [&](const ForwardResult& out, const Stage::Block&) {
    if (!out.lm_loss.defined()) return;
    const std::vector<double> values = read_losses(std::vector{out.lm_loss, out.z_loss});
    loss = unsigned_nan((values[0] - values[1]) * targets);
  });
  if (context_.stage.count > 1)
    context_.comm->all_reduce(context_.stage.across, host_view(std::span(&loss, 1)));
  return {loss, targets};
}

Tensor Trainer::logits(const BatchRows& batch) {
  Tensor logits = context_.empty(DType::f32, {batch.rows, batch.sequence, model_.vocab});
  ForwardOptions options;
  options.keep_logits = true;
  forward_only(model_, read_own(batch, 1), options, [&](const ForwardResult& out, const Stage::Block&) {
    if (out.logits.defined()) logits = replicate(context_, out.logits).tensor();
  });
  if (context_.stage.count > 1) {
    context_.comm->broadcast(context_.stage.across, context_.stage.count - 1, logits.view());
  }
  return read_back(context_, logits, "logits", [&] { return Tensor(Memory(), DType::f32, logits.shape()); });
}

void Trainer::forward_only(const ModelConfig& model, const OwnBatch& batch, ForwardOptions options,
                           const std::function<void(const ForwardResult&, const Stage::Block&)>& use,
                           std::size_t microbatch) {
  NoGrad no_grad(context_);
  const Batch& own = batch.micro[microbatch];
  pipeline(batch.rows, own.inputs.dim(1)).evaluate([&](const PipelinePass& pass, const Array& input) {
    options.block = pass.block;
    options.input = input;
    const ForwardResult out =
        forward(context_, model, moved_ ? *moved_ : parameters_,
                place_own_rows(context_, own, batch.rows, 0, model_.chunk_of_documents()), options);
    use(out, context_.stage.block(pass.block));
    return StageOutput{out.output, out.loss};
  });
}

}  // namespace switchyard

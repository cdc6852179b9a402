// Trainer's step, on any device and any number of ranks. It is issued without a look at its results:
// gradients are summed, judged and applied where they are. What it gave comes back in one report. A GPU with
// one rank records the step as a graph; what keeps it from that is a reason to issue each step anew,
// on the same road.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <optional>

#include "core/graph_cache.h"
#include "core/messages.h"
#include "kernels/pointwise/strided_copy.h"
#include "moe/balance.h"
#include "train/step_faults.h"
#include "train/step_inputs.h"
#include "train/trainer.h"

namespace switchyard {
namespace {

double norm_of(const std::vector<float>& x) {
  double squares = 0;
  for (const float v : x) squares += static_cast<double>(v) * static_cast<double>(v);
  return std::sqrt(squares);
}

// The root of the sum of the first `count` sums of squares, term by term.
double norm_of_squares(const Tensor& squares, std::int64_t count) {
  const double* const all = squares.data<double>();
  return std::sqrt(std::accumulate(all, all + count, 0.0));
}

}  // namespace

struct Trainer::Recorded {
  Recorded(Context& context, const OwnBatch& own, const ModelConfig& model)
      : inputs(context, own.micro, own.rows, model.predictions, model.chunk_of_documents()) {
    if (!context.abstract()) graphs.emplace(context.memory.device(), "[train] the step");
  }
  StepInputs inputs;
  std::optional<gpu::GraphCache> graphs;  // none in a plan
};

struct Trainer::Issued {
  StepReport report;
  PassResults passes;              // without what is in the report
  std::vector<double> bias_norms;  // before the update, of the MoE layers; empty: nobody asked
};

struct Trainer::Added {
  OwnBatch own;  // all microbatches
  PassResults passes;
  BatchRows last;  // the batch of the last call
};

// A plan for a GPU counts on the device `abstract`, and offloads as a GPU does.
bool Trainer::is_on_gpu() const {
  return context_.memory.device().is_gpu() || (context_.abstract() && context_.offload != nullptr);
}

std::string Trainer::keeps_from_graph(const OwnBatch& own) const {
  if (!is_on_gpu()) return "the device is not a GPU";
  if (context_.comm->size() > 1) return "more than one rank";
  if (parameters_.any_away(context_)) return "weights lie on the host";
  if (updater_.offloads()) return "optimizer_memory_host_offload=true";
  if (config_.log_bias_norms && model_.bias_update_rate > 0) return "log_moe_bias_norms=true";
  if (config_.qk_clip > 0) return "use_qk_clip=true";
  if (config_.bad_steps.skip_spikes) return "skip_step_on_spikes=true";
  if (config_.preference) return "use_dpo=true";
  if (config_.log_required_factor) return "log_required_ragged_buffer_factor=true";
  if (config_.log_load_ratio) return "moe_log_max_load_ratio=true";
  if (model_.moe().random_routing) return "use_random_routing=true";
  if (routing_ != nullptr) return "experts are recorded or replayed";
  if (on_gradients_) return "gradients are looked at";
  if (std::ranges::any_of(own.micro, [](const Batch& batch) { return batch.weights.defined(); }))
    return "targets have weights";
  if (context_.fault) return "SWITCHYARD_FAULT";
  return "";
}

StepResult Trainer::step(std::int64_t step, const BatchRows& batch) {
  CHECK(!moved_, "step {} under the rules of an evaluation", step);
  CHECK(added_ == nullptr, "step {} behind half a step", step);
  StepResult result;
  context_.comm->position().step = step;
  result.learning_rate = learning_rate(config_.schedule, step);
  const OwnBatch own = read_own(batch, config_.accumulation * config_.stage_microbatches);
  result.total_weights = own.targets;
  if (routing_ != nullptr) routing_->begin_step(step, batch);
  updater_.sum_new_weights();
  const UpdateNumbers numbers = updater_.numbers_of(step, result.learning_rate);
  const std::string reason = keeps_from_graph(own);
  if (reason.empty()) {
    const auto phase = timer_.scope("step");
    read_report(step, *issue_as_graph(step, batch.sequence, own, numbers, result), batch, result);
  } else {
    if (is_on_gpu() && context_.comm->size() == 1 && !context_.abstract() &&
        !std::exchange(said_why_no_graph_, true))
      say("switchyard: [train] steps are issued one by one, without a graph: {}", reason);
    const Tensor there = numbers_in(context_.memory, numbers);
    read_report(step, issue(step, batch.sequence, own, nullptr, there.view(), result), batch, result);
  }
  if (result.bad.empty()) parameters_.raise_version();
  return result;
}

StepResult Trainer::forward_backward(std::int64_t step, const BatchRows& batch) {
  StepResult result;
  context_.comm->position().step = step;
  OwnBatch own = read_own(batch, config_.accumulation * config_.stage_microbatches);
  result.total_weights = own.targets;
  if (added_ == nullptr) drop_gradients();
  PassResults passes = run_passes(step, batch.sequence, own, nullptr), seen = passes;
  const StepReport report = report_of(seen, own);
  const TensorView loss = sum_losses(report, own);
  if (context_.comm->size() > 1) sum_over_run(context_, loss);
  const StepReport host = report.on_host(context_);
  read_losses(host, result);
  result.loss = context_.comm->size() == 1 ? unsigned_nan(host.loss_sums().data<double>()[kLoss])
                                           : unsigned_nan(host.totals().data<double>()[host.sizes().places]);
  if (added_ == nullptr) {
    added_ = std::make_shared<Added>(std::move(own), std::move(passes), batch);
    return result;
  }
  Added& all = *added_;
  std::ranges::move(own.micro, std::back_inserter(all.own.micro));
  all.own.targets += own.targets;
  all.own.filled_rows += own.filled_rows;
  std::ranges::move(passes.losses, std::back_inserter(all.passes.losses));
  std::ranges::move(passes.places, std::back_inserter(all.passes.places));
  std::ranges::move(passes.loads, std::back_inserter(all.passes.loads));
  std::ranges::move(passes.scores, std::back_inserter(all.passes.scores));
  all.last = batch;
  return result;
}

StepResult Trainer::optimizer_step(std::int64_t step, std::optional<double> rate) {
  CHECK(added_ != nullptr, "step {} without gradients", step);
  const std::shared_ptr<Added> all = std::move(added_);
  StepResult result;
  context_.comm->position().step = step;
  result.learning_rate = rate.value_or(learning_rate(config_.schedule, step));
  result.total_weights = all->own.targets;
  updater_.sum_new_weights();
  const Tensor numbers = numbers_in(context_.memory, updater_.numbers_of(step, result.learning_rate));
  const Issued issued = issue_update(std::move(all->passes), all->own, numbers.view(), result);
  read_report(step, issued, all->last, result);
  if (result.bad.empty()) parameters_.raise_version();
  return result;
}

void Trainer::drop_gradients() {
  added_.reset();
  for (auto& p : parameters_.all()) p.array.value()->grad = Tensor();
}

std::shared_ptr<const Trainer::Issued> Trainer::issue_as_graph(std::int64_t step, std::int64_t length,
                                                               const OwnBatch& own,
                                                               const UpdateNumbers& numbers,
                                                               StepResult& seen) {
  if (recorded_ == nullptr || !recorded_->inputs.takes(own.micro))
    recorded_ = std::make_shared<Recorded>(context_, own, model_);
  StepInputs& inputs = recorded_->inputs;
  inputs.send(own.micro, {divisor(own.targets), divisor(own.further_targets)}, numbers);
  const auto issued = [&] {
    return std::make_shared<const Issued>(issue(step, length, own, &inputs, inputs.numbers(), seen));
  };
  if (!recorded_->graphs) return issued();
  const std::string key = fmt::format("{} {} {} {:a}", own.rows, length, inputs.form(), balance_share(own));
  return recorded_->graphs->run<std::shared_ptr<const Issued>>(key, issued);
}

Trainer::Issued Trainer::issue(std::int64_t step, std::int64_t length, const OwnBatch& own,
                               const StepInputs* inputs, const TensorView& numbers, StepResult& seen) {
  drop_gradients();
  return issue_update(run_passes(step, length, own, inputs), own, numbers, seen);
}

Trainer::Issued Trainer::issue_update(PassResults passes, const OwnBatch& own, const TensorView& numbers,
                                      StepResult& seen) {
  Issued issued;
  issued.passes = std::move(passes);
  issued.report = report_of(issued.passes, own);
  if (routing_ != nullptr) {
    StepRouting::Result routing = routing_->end_step(context_);
    if (routing_->replays()) seen.routing = routing.agreement;
    seen.routing_records = std::move(routing.records);
  }
  if (context_.suffers(Fault::Kind::nan, "gradients")) break_a_gradient(parameters_);
  if (on_gradients_) on_gradients_(parameters_);
  sum_up(issued.report, own, numbers);
  if (judges_early()) {
    judge(context_.comm->position().step, issued.report.on_host(context_), seen);
    if (!seen.bad.empty()) {
      put_number(is_good_of(numbers), 0);
      put_number(issued.report.is_good().view(), 0);
    }
  }
  if (config_.log_bias_norms && model_.bias_update_rate > 0) issued.bias_norms = bias_norms();
  update(issued, numbers, seen);
  return issued;
}

// Moves losses and loads of the passes to a report. The loads become those of the run.
StepReport Trainer::report_of(PassResults& passes, const OwnBatch& own) {
  const PhaseMark mark(context_.comm->position(), "statistics");
  const bool piped = context_.stage.count > 1;
  const auto layers = static_cast<std::int64_t>(model_.moe_layers().size());
  const auto kinds = static_cast<std::int64_t>(kLosses) + (piped ? layers : 0);
  std::vector<std::int64_t> losses_of(static_cast<std::size_t>(kinds), 0);
  for (const std::size_t place : passes.places) ++losses_of[place];
  StepReport report(context_.memory, {.places = updater_.places(),
                                      .slots = updater_.slots(),
                                      .kinds = kinds,
                                      .losses = *std::ranges::max_element(losses_of),
                                      .layers = layers,
                                      .passes = std::ssize(own.micro),
                                      .experts = layers > 0 ? model_.moe().experts : 0});
  const std::int64_t width = report.sizes().losses;
  const TensorView losses = report.losses().view().reshaped({kinds * width});
  std::ranges::fill(losses_of, 0);
  for (std::size_t i = 0; i < passes.losses.size(); ++i) {
    const std::size_t place = passes.places[i];
    const std::int64_t at = static_cast<std::int64_t>(place) * width + losses_of[place]++;
    strided_copy(*context_.pool, passes.losses[i].tensor().view().reshaped({1}), losses.rows(at, at + 1));
  }
  passes.losses.clear();
  std::vector<std::int64_t> passes_of(static_cast<std::size_t>(layers), 0);
  for (LayerLoad& load : passes.loads) {
    const std::size_t place = place_among_experts(model_, load.layer);
    const std::int64_t row = static_cast<std::int64_t>(place) * report.sizes().passes + passes_of[place]++;
    if (load.counted.defined())
      strided_copy(*context_.pool, load.counted.view(),
                   report.loads().view().rows(row, row + 1).reshaped({report.sizes().experts}));
    load.counted = Tensor();
  }
  if (layers > 0 && context_.comm->size() > 1) sum_over_run(context_, report.loads().view());
  return report;
}

TensorView Trainer::sum_losses(const StepReport& report, const OwnBatch& own) {
  const TensorView sums = report.loss_sums().view();
  const RowSums rows{report.losses().view(), sums};
  sum_rows(*context_.pool, std::span(&rows, 1));
  if (context_.comm->size() == 1) return sums.rows(kLoss, kLoss + 1);
  const bool piped = context_.stage.count > 1;
  if (piped) context_.comm->all_reduce(context_.stage.across, sums);
  const std::int64_t places = report.sizes().places;
  const TensorView spoken = report.totals().view().rows(places, places + 1);
  spoken_loss(*context_.pool, {.sums = sums,
                               .from_parts = piped,
                               .balance_factor = balance_share(own),
                               .layers_averaged = layers_averaged(model_),
                               .speaks = context_.comm->rank() == 0,
                               .spoken = spoken});
  return spoken;
}

// Sums the gradients, and judges the step: all ranks agree on whether it is good.
void Trainer::sum_up(const StepReport& report, const OwnBatch& own, const TensorView& numbers) {
  auto phase = timer_.scope("gradients");
  const PhaseMark mark(context_.comm->position(), "gradients");
  ThreadPool& pool = *context_.pool;
  updater_.reduce_gradients();
  updater_.put_gradient_squares(report.squares());
  const std::int64_t places = report.sizes().places;
  const TensorView totals = report.totals().view(), squares = totals.rows(0, places);
  const RowSums norm{report.squares().view(), squares};
  sum_rows(pool, std::span(&norm, 1));
  const TensorView judged = sum_losses(report, own);
  if (context_.suffers(Fault::Kind::nan, "forward")) put_number(judged, NAN);
  if (context_.comm->size() > 1) sum_over_run(context_, totals);
  judge_step(pool, {.squares = squares,
                    .loss = judged,
                    .clip = config_.clip,
                    .numbers = numbers,
                    .is_good = report.is_good().view()});
}

void Trainer::update(const Issued& issued, const TensorView& numbers, StepResult& seen) {
  auto phase = timer_.scope("optimizer");
  const PhaseMark mark(context_.comm->position(), "optimizer");
  const StepReport& report = issued.report;
  updater_.update(numbers);
  if (model_.bias_update_rate > 0) {
    const std::int64_t passes = report.sizes().passes;
    std::int64_t row = 0;
    for (const std::int64_t layer : model_.moe_layers()) {
      updater_.balance(fmt::format("layers.{}.moe.gate_bias", layer),
                       report.loads().view().rows(row, row + passes), model_.bias_update_rate, numbers);
      row += passes;
    }
  }
  if (config_.qk_clip > 0) {
    seen.scores = largest_scores_of_stacks(context_, model_, issued.passes.scores);
    if (seen.bad.empty()) clip_scores(seen.scores);
  }
  updater_.publish();
  if (context_.suffers(Fault::Kind::flip, "optimizer")) flip_a_bit(parameters_);
  updater_.sum_new_weights();
  const RowSums weights{updater_.weight_squares().view(), report.weights().view()};
  sum_rows(*context_.pool, std::span(&weights, 1));
  // This sum is also the barrier behind which a rank may read weights that others wrote.
  if (context_.comm->size() > 1) sum_over_run(context_, report.weights().view());
}

void Trainer::read_losses(const StepReport& host, StepResult& result) const {
  const double* const sums = host.loss_sums().data<double>();
  const auto sum_of = [&](LossPlace place) { return unsigned_nan(sums[place]); };
  result.lm_loss = sum_of(kLmLoss), result.z_loss = sum_of(kZLoss);
  result.balance_loss = sum_of(kBalanceLoss), result.prediction_loss = sum_of(kPredictionLoss);
  result.indexer_loss = sum_of(kIndexerLoss);
  if (config_.preference)
    result.rewards = {sum_of(kChosenReward), sum_of(kRejectedReward), sum_of(kPreferred)};
}

void Trainer::read_report(std::int64_t step, const Issued& issued, const BatchRows& batch,
                          StepResult& result) {
  const StepReport host = issued.report.on_host(context_);
  result.layer_bytes = issued.passes.layer_bytes;
  read_losses(host, result);
  if (!judges_early()) judge(step, host, result);
  const bool was_good = host.is_good().data<float>()[0] != 0;
  CHECK(context_.abstract() || was_good == result.bad.empty(), "the device {} step {}, the host says '{}'",
        was_good ? "made" : "skipped", step, result.bad);
  result.grad_norm = result.raw_grad_norm * clip_factor(result.raw_grad_norm);
  result.param_norm = norm_of_squares(host.weights(), host.sizes().places);
  result.layers = statistics_.gather(host, issued.passes.loads);
  for (std::size_t l = 0; l < issued.bias_norms.size() && result.bad.empty(); ++l) {
    LayerStatistics& layer = result.layers[l];
    layer.bias_norm = issued.bias_norms[l];
    layer.bias_update_norm = norm_of(bias_increment(layer.rows, model_.bias_update_rate));
  }
  say_origin(batch, host.squares(), result);
}

void Trainer::judge(std::int64_t step, const StepReport& host, StepResult& result) {
  const std::int64_t places = host.sizes().places;
  const double norm = norm_of_squares(host.totals(), places),
               loss = context_.comm->size() == 1 ? host.loss_sums().data<double>()[kLoss]
                                                 : host.totals().data<double>()[places];
  result.raw_grad_norm = unsigned_nan(norm);
  result.loss = unsigned_nan(loss);
  result.bad =
      bad_steps_.judge(step, {.loss = loss,
                              .gradient_norm = norm,
                              .clipped_norm = config_.clip > 0 ? std::min(norm, config_.clip) : norm});
  result.skipped = bad_steps_.skipped();
}

double Trainer::clip_factor(double norm) const {
  return config_.clip > 0 && norm >= config_.clip ? config_.clip / norm : 1.0;
}

std::vector<double> Trainer::bias_norms() {
  std::vector<double> norms;
  for (const std::int64_t layer : model_.moe_layers())
    norms.push_back(norm_of(host_copy(fmt::format("layers.{}.moe.gate_bias", layer))));
  return norms;
}

// A parameter that is whole on every rank of its stage, wherever that is.
std::vector<float> Trainer::host_copy(const std::string& name) {
  const bool here = parameters_.contains(name);
  const Tensor value = here ? parameters_.on_device(context_, name).tensor().clone()
                            : context_.zeros(DType::f32, {model_.moe().experts});
  if (context_.stage.count > 1) context_.comm->all_reduce(context_.stage.across, value.view());
  const Tensor host = read_back(context_, value, "router bias",
                                [&] { return Memory().zeros(DType::f32, {model_.moe().experts}); });
  return {host.span<float>().begin(), host.span<float>().end()};
}

void Trainer::clip_scores(const StackScores& scores) {
  if (!(largest_of(scores) + 1e-6 > config_.qk_clip)) return;
  for (std::int64_t i = 0; i < model_.depth(); ++i) {
    const std::vector<float> factors = clip_factors(scores[stack_of(model_, i)], config_.qk_clip);
    const std::string name = fmt::format("layers.{}.attention.", i);
    updater_.scale_columns(name + "wq_b", clip_columns(model_, true, factors));
    updater_.scale_columns(name + "wkv_b", clip_columns(model_, false, factors));
  }
}

}  // namespace switchyard

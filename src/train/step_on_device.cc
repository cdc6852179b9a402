// Trainer's step on a GPU without the host in between: issued, judged and updated there, read back once.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <numeric>
#include <optional>

#include "core/graph_cache.h"
#include "kernels/pointwise/strided_copy.h"
#include "train/device_step.h"
#include "train/trainer.h"

namespace switchyard {

struct Trainer::OnDevice {
  OnDevice(Context& context, const OwnBatch& own, const ModelConfig& model)
      : inputs(context, own.micro, own.rows, model.predictions, model.chunk_of_documents()) {
    if (!context.abstract()) graphs.emplace(context.memory.device(), "[train] the step");
  }
  StepInputs inputs;
  std::optional<gpu::GraphCache> graphs;  // none in a plan
};

struct Trainer::Issued {
  StepReport report;
  Passes passes;                        // without their losses, which are in the report
  std::vector<std::int64_t> load_rows;  // of the loads in the report: by layer, then by pass
};

// A plan for a GPU counts on the device `abstract`, and offloads as a GPU does.
bool Trainer::is_on_gpu() const {
  return context_.memory.device().is_gpu() || (context_.abstract() && context_.offload != nullptr);
}

std::string Trainer::needs_host() const {
  if (!is_on_gpu()) return "the device is not a GPU";
  if (const std::string reason = updater_.works_by_numbers(); !reason.empty()) return reason;
  if (config_.log_bias_norms && model_.bias_update_rate > 0) return "log_moe_bias_norms=true";
  if (config_.qk_clip > 0) return "use_qk_clip=true";
  if (config_.bad_steps.skip_spikes) return "skip_step_on_spikes=true";
  if (config_.log_required_factor) return "log_required_ragged_buffer_factor=true";
  if (config_.log_load_ratio) return "moe_log_max_load_ratio=true";
  if (model_.moe.random_routing) return "use_random_routing=true";
  if (routing_ != nullptr) return "experts are recorded or replayed";
  if (on_gradients_) return "gradients are looked at";
  if (context_.fault) return "SWITCHYARD_FAULT";
  return "";
}

StepResult Trainer::step_on_device(std::int64_t step, const BatchRows& batch) {
  StepResult result;
  context_.comm->position().step = step;
  result.learning_rate = learning_rate(config_.schedule, step);
  const OwnBatch own = read_own(batch, config_.accumulation * config_.stage_microbatches);
  result.total_weights = own.targets;
  auto phase = timer_.scope("step");
  if (on_device_ == nullptr || !on_device_->inputs.takes(own.micro))
    on_device_ = std::make_shared<OnDevice>(context_, own, model_);
  updater_.know_weights();
  StepInputs& inputs = on_device_->inputs;
  inputs.send(own.micro, {divisor(own.targets), divisor(own.further_targets)},
              updater_.numbers_of(step, result.learning_rate));
  const auto issued = [&] { return std::make_shared<const Issued>(issue(step, batch.sequence, own)); };
  const std::string key =
      fmt::format("{} {} {} {:a}", own.rows, batch.sequence, inputs.form(), balance_share(own));
  read_report(
      step,
      on_device_->graphs ? *on_device_->graphs->run<std::shared_ptr<const Issued>>(key, issued) : *issued(),
      batch, own, result);
  return result;
}

Trainer::Issued Trainer::issue(std::int64_t step, std::int64_t length, const OwnBatch& own) {
  Issued issued;
  issued.passes = run_passes(step, length, own, &on_device_->inputs);
  std::vector<Array> losses = std::move(issued.passes.losses);
  issued.passes.losses.clear();
  const std::span<const std::size_t> places = issued.passes.places;
  const std::int64_t passes = std::ssize(own.micro), each = std::ssize(places) / passes;
  for (std::size_t i = 0; i < places.size(); ++i)
    CHECK(places[i] == places[i % static_cast<std::size_t>(each)], "passes with different losses");
  std::vector<LayerLoad>& loads = issued.passes.loads;
  issued.report = StepReport(context_.memory, {.ranges = updater_.parameters(),
                                               .passes = passes,
                                               .losses = each,
                                               .loads = std::ssize(loads),
                                               .experts = loads.empty() ? 0 : loads[0].counted.size()});
  const StepReport& report = issued.report;
  const TensorView values = report.losses().view().reshaped({passes * each});
  for (std::int64_t i = 0; i < std::ssize(losses); ++i)
    strided_copy(*context_.pool, losses[static_cast<std::size_t>(i)].tensor().view().reshaped({1}),
                 values.rows(i, i + 1));
  losses.clear();
  std::vector<std::int64_t> passes_of(model_.moe_layers().size(), 0);
  for (LayerLoad& load : loads) {
    const std::size_t place = place_of(load.layer);
    const std::int64_t row = static_cast<std::int64_t>(place) * passes + passes_of[place]++;
    strided_copy(*context_.pool, load.counted.view(),
                 report.loads().view().rows(row, row + 1).reshaped({report.sizes().experts}));
    issued.load_rows.push_back(row);
    load.counted = Tensor();
  }
  update_on_device(issued);
  return issued;
}

void Trainer::update_on_device(const Issued& issued) {
  const StepReport& report = issued.report;
  const TensorView numbers = on_device_->inputs.numbers();
  {
    auto phase = timer_.scope("gradients");
    const PhaseMark mark(context_.comm->position(), "gradients");
    updater_.reduce_gradients();
    updater_.put_gradient_squares(report.gradient_squares());
    judge_step(*context_.pool,
               {.squares = report.gradient_squares().view(),
                .losses = report.losses().view(),
                .column = std::ranges::find(issued.passes.places, kLoss) - issued.passes.places.begin(),
                .clip = config_.clip,
                .numbers = numbers});
  }
  auto phase = timer_.scope("optimizer");
  const PhaseMark mark(context_.comm->position(), "optimizer");
  updater_.update_by_numbers(numbers);
  if (model_.bias_update_rate > 0) {
    const std::int64_t passes = report.sizes().passes;
    for (const std::int64_t layer : model_.moe_layers()) {
      const auto row = static_cast<std::int64_t>(place_of(layer)) * passes;
      updater_.balance_by_numbers(fmt::format("layers.{}.moe.gate_bias", layer),
                                  report.loads().view().rows(row, row + passes), model_.bias_update_rate,
                                  numbers);
    }
  }
  updater_.put_weight_squares(report.weight_squares());
  copy(numbers, report.numbers().view());
}

void Trainer::read_report(std::int64_t step, const Issued& issued, const BatchRows& batch,
                          const OwnBatch& own, StepResult& result) {
  const StepReport host = issued.report.on_host(context_);
  const Tensor losses = host.losses();
  result.layer_bytes = issued.passes.layer_bytes;
  add_losses(std::vector<double>(losses.span<float>().begin(), losses.span<float>().end()), issued.passes,
             own, result);
  std::vector<LayerLoad> loads = issued.passes.loads;
  const Tensor counts = host.loads();
  const std::int64_t experts = host.sizes().experts;
  for (std::size_t i = 0; i < loads.size(); ++i) {
    const std::int32_t* const count = counts.data<std::int32_t>() + issued.load_rows[i] * experts;
    loads[i].rows.assign(count, count + experts);
  }
  gather_statistics(loads, result);
  const auto norm_of_sum = [](const Tensor& squares) {
    const auto all = squares.span<double>();
    return std::sqrt(std::accumulate(all.begin(), all.end(), 0.0));
  };
  judge_by(step, norm_of_sum(host.gradient_squares()), result.loss, result);
  const bool went = host.numbers().data<float>()[offsetof(UpdateNumbers, goes) / sizeof(float)] != 0;
  CHECK(context_.abstract() || went == result.bad.empty(), "the device {} step {}, the host says '{}'",
        went ? "made" : "skipped", step, result.bad);
  result.grad_norm = result.raw_grad_norm * clip_factor(result.raw_grad_norm);
  result.param_norm = norm_of_sum(host.weight_squares());
  say_origin(batch, host.gradient_squares().span<double>(), result);
}

// Says once why the steps of one rank with a GPU wait for the host.
void Trainer::say_why_host() {
  if (said_why_host_ || context_.comm->size() > 1 || context_.abstract() || !is_on_gpu()) return;
  said_why_host_ = true;
  fmt::print(stderr, "switchyard: [train] steps wait for the host, and are no graph: {}\n", needs_host());
}

}  // namespace switchyard

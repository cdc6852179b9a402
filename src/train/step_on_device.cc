// Trainer's step on a GPU without the host in between: issued, judged and updated there, read back once.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "core/graph_cache.h"
#include "kernels/pointwise/strided_copy.h"
#include "train/device_step.h"
#include "train/trainer.h"

namespace switchyard {

struct Trainer::OnDevice {
  OnDevice(Context& context, const OwnBatch& own, std::int64_t predictions)
      : inputs(context, own.micro, own.rows, predictions),
        graphs(context.memory.device(), "[train] the step") {}
  StepInputs inputs;
  gpu::GraphCache graphs;
};

struct Trainer::Issued {
  StepReport report;
  Passes passes;  // without their losses, which are in the report
};

std::string Trainer::needs_host() const {
  const DeviceKind kind = context_.memory.device().kind();
  if (kind != DeviceKind::cuda && kind != DeviceKind::cuda_emulated) return "the device is not a GPU";
  if (const std::string reason = updater_.works_by_numbers(); !reason.empty()) return reason;
  if (model_.bias_update_rate > 0) return "routed_bias_update_rate";
  if (config_.qk_clip > 0) return "use_qk_clip=true";
  if (config_.bad_steps.skip_spikes) return "skip_step_on_spikes=true";
  if (config_.log_required_factor) return "log_required_ragged_buffer_factor=true";
  if (config_.log_load_ratio) return "moe_log_max_load_ratio=true";
  if (model_.moe.random_routing) return "use_random_routing=true";
  if (model_.chunk_of_documents() > 0) return "attention within chunks of documents";
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
    on_device_ = std::make_shared<OnDevice>(context_, own, model_.predictions);
  updater_.know_weights();
  on_device_->inputs.send(own.micro, {.adam = updater_.terms_of(step, result.learning_rate)});
  const std::string key = fmt::format("{} {} {:a} {:a} {:a}", own.rows, batch.sequence, own.targets,
                                      own.further_targets, balance_share(own));
  const auto issued = on_device_->graphs.run<std::shared_ptr<const Issued>>(
      key, [&] { return std::make_shared<const Issued>(issue(step, batch.sequence, own)); });
  read_report(step, *issued, own, result);
  return result;
}

Trainer::Issued Trainer::issue(std::int64_t step, std::int64_t length, const OwnBatch& own) {
  Issued issued;
  issued.passes = run_passes(step, length, own, on_device_->inputs.batches());
  auto phase = timer_.scope("optimizer");
  const PhaseMark mark(context_.comm->position(), "optimizer");
  std::vector<Array> losses = std::move(issued.passes.losses);
  issued.passes.losses.clear();
  const std::span<const std::size_t> places = issued.passes.places;
  const std::int64_t passes = std::ssize(own.micro), each = std::ssize(places) / passes;
  for (std::size_t i = 0; i < places.size(); ++i)
    CHECK(places[i] == places[i % static_cast<std::size_t>(each)], "passes with different losses");
  std::vector<Tensor> counted;
  for (LayerLoad& load : issued.passes.loads) {
    if (load.counted.defined()) counted.push_back(load.counted);
  }
  issued.report = StepReport(context_.memory, {.ranges = updater_.parameters(),
                                               .passes = passes,
                                               .losses = each,
                                               .layers = std::ssize(counted),
                                               .experts = counted.empty() ? 0 : counted[0].size()});
  const StepReport& report = issued.report;
  const TensorView numbers = on_device_->inputs.numbers();
  const TensorView values = report.losses().view().reshaped({passes * each});
  for (std::int64_t i = 0; i < std::ssize(losses); ++i)
    strided_copy(*context_.pool, losses[static_cast<std::size_t>(i)].tensor().view().reshaped({1}),
                 values.rows(i, i + 1));
  losses.clear();
  for (std::int64_t i = 0; i < std::ssize(counted); ++i)
    strided_copy(*context_.pool, counted[static_cast<std::size_t>(i)].view(),
                 report.loads().view().rows(i, i + 1).reshaped({report.sizes().experts}));
  updater_.reduce_gradients();
  updater_.put_gradient_squares(report.gradient_squares());
  judge_step({.squares = report.gradient_squares().view(),
              .losses = report.losses().view(),
              .column = std::ranges::find(places, kLoss) - places.begin(),
              .clip = config_.clip,
              .numbers = numbers});
  updater_.update_by_numbers(numbers);
  updater_.put_weight_squares(report.weight_squares());
  copy(numbers, report.numbers().view());
  return issued;
}

void Trainer::read_report(std::int64_t step, const Issued& issued, const OwnBatch& own, StepResult& result) {
  const StepReport host = issued.report.on_host(context_);
  const Tensor losses = host.losses();
  result.layer_bytes = issued.passes.layer_bytes;
  add_losses(std::vector<double>(losses.span<float>().begin(), losses.span<float>().end()), issued.passes,
             own, result);
  std::vector<LayerLoad> loads = issued.passes.loads;
  const Tensor counts = host.loads();
  const std::int32_t* count = counts.data<std::int32_t>();
  for (LayerLoad& load : loads) {
    if (!load.counted.defined()) continue;
    load.rows.assign(count, count + host.sizes().experts);
    load.counted = Tensor();
    count += host.sizes().experts;
  }
  gather_statistics(loads, result);
  const auto norm_of_sum = [](const Tensor& squares) {
    const auto all = squares.span<double>();
    return std::sqrt(std::accumulate(all.begin(), all.end(), 0.0));
  };
  judge_by(step, norm_of_sum(host.gradient_squares()), result.loss, result);
  const bool went = host.numbers().data<float>()[offsetof(UpdateNumbers, goes) / sizeof(float)] != 0;
  CHECK(went == result.bad.empty(), "the device {} step {}, the host says '{}'", went ? "made" : "skipped",
        step, result.bad);
  result.grad_norm = result.raw_grad_norm * clip_factor(result.raw_grad_norm);
  result.param_norm = norm_of_sum(host.weight_squares());
}

// On a GPU, says once why steps wait for the host.
void Trainer::say_why_host() {
  if (said_why_host_ || context_.comm->rank() != 0) return;
  said_why_host_ = true;
  const DeviceKind kind = context_.memory.device().kind();
  if (kind != DeviceKind::cuda && kind != DeviceKind::cuda_emulated) return;
  fmt::print(stderr, "switchyard: [train] steps wait for the host, and are no graph: {}\n", needs_host());
}

}  // namespace switchyard

#include "train/bad_steps.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/error.h"

namespace switchyard {

BadStepConfig bad_step_config(const Config& c) {
  return {.nan_loss_aborts = c.get_bool("abort_on_nan_loss"),
          .infinite_loss_aborts = c.get_bool("abort_on_inf_loss"),
          .most_in_a_row = c.get_int("max_consecutive_bad_steps"),
          .skip_spikes = c.get_bool("skip_step_on_spikes"),
          .spike_interval = c.get_int("skip_step_interval"),
          .spike_factor = c.get_float("skip_step_scaling_factor")};
}

std::string BadSteps::judge(std::int64_t step, const StepHealth& h) {
  reason_.clear();
  if (!std::isfinite(h.loss))
    reason_ = std::isnan(h.loss) ? "the loss is not a number" : "the loss is infinite";
  else if (!std::isfinite(h.gradient_norm))
    reason_ = std::isnan(h.gradient_norm) ? "the gradient is not a number" : "the gradient is infinite";
  else if (config_.skip_spikes && is_spike(h.loss, state_.losses))
    reason_ = fmt::format("the loss {:.4g} is a spike", h.loss);
  else if (config_.skip_spikes && is_spike(h.clipped_norm, state_.gradient_norms))
    reason_ = fmt::format("the gradient norm {:.4g} is a spike", h.clipped_norm);
  remember(h);
  state_.in_a_row = reason_.empty() ? 0 : state_.in_a_row + 1;
  if (reason_.empty()) return reason_;
  ++state_.skipped;
  return fmt::format("step {} skipped: {}", step, reason_);
}

void BadSteps::stop_if_hopeless(std::int64_t step, double loss) const {
  if (std::isnan(loss) && config_.nan_loss_aborts)
    fail_runtime("[train] loss is not a number at step {} (abort_on_nan_loss=true)", step);
  if (std::isinf(loss) && config_.infinite_loss_aborts)
    fail_runtime("[train] loss is infinite at step {} (abort_on_inf_loss=true)", step);
  if (config_.most_in_a_row == 0 || state_.in_a_row < config_.most_in_a_row) return;
  fail_runtime(
      "[train] steps {} to {} were bad, the last because {}: expected fewer than "
      "max_consecutive_bad_steps={} in a row; lower learning_rate, or look at the data",
      step - state_.in_a_row + 1, step, reason_, config_.most_in_a_row);
}

// True when the value exceeds the mean of the last steps by more than the factor times their (sample)
// standard deviation. Needs half of the wanted steps: a run's first steps are alike.
bool BadSteps::is_spike(double value, const std::deque<double>& before) const {
  const auto count = static_cast<double>(before.size());
  if (static_cast<std::int64_t>(before.size()) + 1 < std::max<std::int64_t>(2, config_.spike_interval / 2))
    return false;
  double sum = 0, squares = 0;
  for (const double x : before) sum += x;
  const double mean = sum / count;
  for (const double x : before) squares += (x - mean) * (x - mean);
  return value > mean + config_.spike_factor * std::sqrt(squares / std::max(1.0, count - 1));
}

// Spikes count too: where the loss stays high, that becomes usual.
void BadSteps::remember(const StepHealth& h) {
  if (!config_.skip_spikes || !std::isfinite(h.loss) || !std::isfinite(h.gradient_norm)) return;
  for (const auto& [values, value] :
       {std::pair(&state_.losses, h.loss), std::pair(&state_.gradient_norms, h.clipped_norm)}) {
    values->push_back(value);
    if (static_cast<std::int64_t>(values->size()) > config_.spike_interval) values->pop_front();
  }
}

nlohmann::json to_json(const BadSteps::State& state) {
  return {{"skipped", state.skipped},
          {"in_a_row", state.in_a_row},
          {"losses", state.losses},
          {"gradient_norms", state.gradient_norms}};
}

BadSteps::State bad_step_state(const nlohmann::json& json) {
  try {
    return {.skipped = json.at("skipped").get<std::int64_t>(),
            .in_a_row = json.at("in_a_row").get<std::int64_t>(),
            .losses = json.at("losses").get<std::deque<double>>(),
            .gradient_norms = json.at("gradient_norms").get<std::deque<double>>()};
  } catch (const nlohmann::json::exception&) {
    fail_usage("[checkpoint] bad_steps: expected skipped, in_a_row, losses and gradient_norms, got {}",
               json.dump());
  }
}

}  // namespace switchyard

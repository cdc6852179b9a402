// Bad steps: a loss or gradient that is not a number, or far from those of the steps before. Their update is
// left out on all ranks, weights, optimizer state and router bias stay as they were, and too many of them in
// a row end the run.
#pragma once

#include <cstdint>
#include <deque>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "config/config.h"

namespace switchyard {

struct BadStepConfig {
  bool nan_loss_aborts = true, infinite_loss_aborts = true;  // abort_on_nan_loss, abort_on_inf_loss
  std::int64_t most_in_a_row = 10;                           // max_consecutive_bad_steps; 0: no limit
  bool skip_spikes = false;                                  // skip_step_on_spikes
  std::int64_t spike_interval = 128;                         // steps that a spike is measured against
  double spike_factor = 6;                                   // standard deviations above their mean
};
BadStepConfig bad_step_config(const Config& config);

// What the ranks of a run agree on about one step.
struct StepHealth {
  double loss = 0;                      // not finite where any rank's is not
  double gradient_norm = 0;             // before clipping
  double clipped_norm = gradient_norm;  // after it: what spikes are looked for in, as in the reference
};

class BadSteps {
 public:
  // What a run that goes on from a checkpoint must know to judge alike.
  struct State {
    std::int64_t skipped = 0, in_a_row = 0;
    std::deque<double> losses, gradient_norms;  // with skip_spikes: of the last steps, oldest first
  };

  explicit BadSteps(const BadStepConfig& config) : config_(config) {}

  // Why the step is bad, "" for a good one; counts it. The answer follows from what was passed so far, so it
  // is the same on every rank.
  std::string judge(std::int64_t step, const StepHealth& health);
  // Error(runtime) after a step with which the run must not go on.
  void stop_if_hopeless(std::int64_t step, double loss) const;

  std::int64_t skipped() const { return state_.skipped; }  // so far

  const State& state() const { return state_; }
  void restore(State state) { state_ = std::move(state); }

 private:
  bool is_spike(double value, const std::deque<double>& before) const;
  void remember(const StepHealth& health);

  BadStepConfig config_;
  State state_;
  std::string reason_;  // of the last step
};

// As a checkpoint's manifest has it. Error(usage) for anything else.
nlohmann::json to_json(const BadSteps::State& state);
BadSteps::State bad_step_state(const nlohmann::json& json);

}  // namespace switchyard

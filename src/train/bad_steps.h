// Bad steps: the loss or gradient is not finite, or far from earlier
// steps. All ranks skip the update; weights, optimizer state and router
// bias stay as they were. Too many bad steps in a row end the run.
#pragma once

#include <cmath>
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
  std::int64_t spike_interval = 128;                         // steps that a spike is compared with
  double spike_factor = 6;                                   // standard deviations above their mean
};
BadStepConfig bad_step_config(const Config& config);

// Figures of one step on which all ranks agree.
struct StepHealth {
  double loss = 0;                      // not finite when any rank's loss is not
  double gradient_norm = 0;             // before clipping
  double clipped_norm = gradient_norm;  // after clipping: spikes are searched here, as in the reference
};

// People and files get "nan", whatever sign the machine gave it.
inline double unsigned_nan(double x) {
  return std::isnan(x) ? NAN : x;
}

class BadSteps {
 public:
  // The state that a resumed run needs to judge in the same way.
  struct State {
    std::int64_t skipped = 0, in_a_row = 0;
    std::deque<double> losses, gradient_norms;  // with skip_spikes: the last steps', oldest first
  };

  explicit BadSteps(const BadStepConfig& config) : config_(config) {}

  // Judges a step and counts it: returns why it is bad, "" for a good one. The answer depends only on past
  // arguments, so it is the same on every rank.
  std::string judge(std::int64_t step, const StepHealth& health);
  // Error(runtime) after a step that must end the run.
  void stop_if_hopeless(std::int64_t step, double loss) const;

  std::int64_t skipped() const { return state_.skipped; }  // so far

  const State& state() const { return state_; }
  void restore(State state) { state_ = std::move(state); }

 private:
  bool is_spike(double value, const std::deque<double>& before) const;
  void remember(const StepHealth& health);

  BadStepConfig config_;
  State state_;
  std::string reason_;  // for the last step
};

// Converts the state to and from a checkpoint manifest. Error(usage) for any other JSON.
nlohmann::json to_json(const BadSteps::State& state);
BadSteps::State bad_step_state(const nlohmann::json& json);

}  // namespace switchyard

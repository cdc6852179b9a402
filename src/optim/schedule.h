// The learning rate as a function of the step, with the reference's phases: warm-up, then cosine decay or
// "warm-up, stable, decay", then zero.
#pragma once

#include <cstdint>
#include <string>

namespace switchyard {

// One field per configuration key with the same meaning.
struct ScheduleConfig {
  std::string type = "cosine";         // lr_schedule_type: "cosine" or "wsd"
  double learning_rate = 0;            // the peak
  double final_fraction = 0.1;         // learning_rate_final_fraction, of the peak
  double warmup_steps_fraction = 0.1;  // share of schedule_steps; all fractions round down to whole steps
  double wsd_decay_steps_fraction = 0.1;
  std::string wsd_decay_style = "linear";  // "linear" or "cosine"
  std::int64_t schedule_steps =
      0;  // learning_rate_schedule_steps, the default -1 replaced by the run's steps
};

// Throws Error(usage) for an unknown type or style, a fraction outside [0, 1], a negative rate or number of
// steps, and for wsd when warm-up and decay together are longer than the schedule.
void check(const ScheduleConfig& config);

// The learning rate of step `step`, counted from 0, for a config that passes check().
//
// With T = schedule_steps, w warm-up steps, peak, and final = peak * final_fraction: the rate is peak * step
// / w before step w, so a warm-up's first update has rate 0, and 0 from step T on. A decay of n steps begins
// at peak and ends with rate final. A decay of one step has rate final (cosine) or peak (linear).
double learning_rate(const ScheduleConfig& config, std::int64_t step);

}  // namespace switchyard

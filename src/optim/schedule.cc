#include "optim/schedule.h"

#include <cmath>
#include <numbers>

#include "core/error.h"

namespace switchyard {
namespace {

std::int64_t whole_steps(const ScheduleConfig& config, double fraction) {
  return static_cast<std::int64_t>(static_cast<double>(config.schedule_steps) * fraction);
}

// Rate of step `step` of the `steps` steps of a decay from `peak` to `final`.
double decay(const std::string& style, double peak, double final, std::int64_t step, std::int64_t steps) {
  const bool cosine = style == "cosine";
  if (steps == 1) return cosine ? final : peak;
  const double progress = static_cast<double>(step) / static_cast<double>(steps - 1);
  const double share = cosine ? (1 + std::cos(std::numbers::pi * progress)) / 2 : 1 - progress;
  return peak * share + final * (1 - share);
}

void check_fraction(const char* key, double value) {
  if (!(value >= 0 && value <= 1)) fail_usage("[optim] expected {} between 0 and 1, got {}", key, value);
}

}  // namespace

void check(const ScheduleConfig& config) {
  if (config.type != "cosine" && config.type != "wsd") {
    fail_usage("[optim] expected lr_schedule_type to be cosine or wsd, got '{}'", config.type);
  }
  if (config.wsd_decay_style != "linear" && config.wsd_decay_style != "cosine") {
    fail_usage("[optim] expected wsd_decay_style to be linear or cosine, got '{}'", config.wsd_decay_style);
  }
  check_fraction("warmup_steps_fraction", config.warmup_steps_fraction);
  check_fraction("wsd_decay_steps_fraction", config.wsd_decay_steps_fraction);
  if (!(config.learning_rate >= 0)) {
    fail_usage("[optim] expected learning_rate to be at least 0, got {}", config.learning_rate);
  }
  if (config.schedule_steps < 0) {
    fail_usage("[optim] expected learning_rate_schedule_steps to be at least 0, got {}",
               config.schedule_steps);
  }
  const std::int64_t warmup = whole_steps(config, config.warmup_steps_fraction);
  const std::int64_t decaying = whole_steps(config, config.wsd_decay_steps_fraction);
  if (config.type == "wsd" && warmup + decaying > config.schedule_steps) {
    fail_usage(
        "[optim] expected warm-up and decay to fit into the schedule, got {} + {} of {} steps; lower "
        "warmup_steps_fraction={} or wsd_decay_steps_fraction={}",
        warmup, decaying, config.schedule_steps, config.warmup_steps_fraction,
        config.wsd_decay_steps_fraction);
  }
}

double learning_rate(const ScheduleConfig& config, std::int64_t step) {
  CHECK(step >= 0, "step {}", step);
  const double peak = config.learning_rate;
  const double final = peak * config.final_fraction;
  const std::int64_t total = config.schedule_steps;
  const std::int64_t warmup = whole_steps(config, config.warmup_steps_fraction);
  if (step >= total) return 0;
  if (step < warmup) return peak * static_cast<double>(step) / static_cast<double>(warmup);
  if (config.type == "cosine") return decay("cosine", peak, final, step - warmup, total - warmup);
  const std::int64_t decaying = whole_steps(config, config.wsd_decay_steps_fraction);
  const std::int64_t begin = total - decaying;
  return step < begin ? peak : decay(config.wsd_decay_style, peak, final, step - begin, decaying);
}

}  // namespace switchyard

// TrainConfig: the settings of a training step, read from a run's configuration.
#pragma once

#include <cstdint>
#include <optional>

#include "models/pipeline.h"
#include "ops/preference_loss.h"
#include "optim/schedule.h"
#include "train/bad_steps.h"
#include "train/update.h"

namespace switchyard {

struct TrainConfig {
  UpdateConfig update;
  ScheduleConfig schedule;
  BadStepConfig bad_steps;
  double clip = 0;                      // gradient_clipping_threshold, 0 = off
  bool log_bias_norms = false;          // log_moe_bias_norms
  std::int64_t accumulation = 1;        // microbatches in each step
  double qk_clip = 0;                   // qk_clip_threshold with use_qk_clip, 0 = off
  std::int64_t stage_microbatches = 1;  // microbatches of a pipeline in each of these
  PipelineSchedule schedule_of_stages = PipelineSchedule::one_forward_one_backward;
  std::optional<PreferenceOptions> preference = {};  // use_dpo; its counts are the step's
  bool log_required_factor = false;                  // log_required_ragged_buffer_factor
  bool log_load_ratio = false;                       // moe_log_max_load_ratio
};
// Error(usage) as from pipeline_repeats().
TrainConfig train_config(const Config& config, const ModelConfig& model, int stages);

}  // namespace switchyard

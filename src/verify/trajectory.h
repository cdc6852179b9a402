// Training steps of a case: another program's losses and gradient norms, and a trainer with its settings.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"
#include "train/trainer.h"
#include "verify/bounds.h"
#include "verify/report.h"

namespace switchyard {

// The contents of trajectory.json.
struct Trajectory {
  OptimizerConfig optimizer;
  double learning_rate = 0;
  std::vector<double> losses, norms;  // before each update
  double balance_weight = 0;          // of the balance loss, which `losses` then have in them
};

// Error(usage) for a file of another form.
Trajectory read_trajectory(const std::string& path);
// The config's training with the optimizer and the schedule of the trajectory.
TrainConfig training(const Config& config, const ModelConfig& model, const Trajectory& trajectory);
void compare_training(const Trajectory& trajectory, const std::vector<StepResult>& steps,
                      const Bounds& bounds, CaseReport& report);

}  // namespace switchyard

#include "verify/trajectory.h"

#include "core/error.h"
#include "core/json_file.h"

namespace switchyard {

Trajectory read_trajectory(const std::string& path) {
  const nlohmann::json file = read_json_file(path);
  const nlohmann::json& stated = file.at("optimizer");
  if (stated.at("name") != "AdamW" || stated.at("schedule") != "constant" ||
      !stated.at("clipping").is_null()) {
    fail_usage("[verify] {}: expected AdamW at a constant rate without clipping", path);
  }
  Trajectory t;
  t.optimizer.b1 = stated.at("betas").at(0);
  t.optimizer.b2 = stated.at("betas").at(1);
  t.optimizer.eps = stated.at("eps");
  t.optimizer.weight_decay = stated.at("weight_decay");
  t.learning_rate = stated.at("lr");
  t.losses = file.at("loss_before_update").get<std::vector<double>>();
  t.norms = file.at("gradient_norm_before_update").get<std::vector<double>>();
  t.balance_weight = file.value("balance_loss_weight", 0.0);
  if (t.losses.size() != t.norms.size()) {
    fail_usage("[verify] {}: expected as many losses as norms, got {} and {}", path, t.losses.size(),
               t.norms.size());
  }
  return t;
}

TrainConfig training(const Config& config, const ModelConfig& model, const Trajectory& trajectory) {
  TrainConfig t = train_config(config, model, mesh_from_config(config).axis_size("stage"));
  const DType mu_dtype = t.update.optimizer.mu_dtype;
  t.update.optimizer = trajectory.optimizer;
  t.update.optimizer.mu_dtype = mu_dtype;
  t.schedule = {};
  t.schedule.type = "wsd";  // without warm-up and decay: constant
  t.schedule.learning_rate = trajectory.learning_rate;
  t.schedule.warmup_steps_fraction = t.schedule.wsd_decay_steps_fraction = 0;
  t.schedule.schedule_steps = static_cast<std::int64_t>(trajectory.losses.size());
  t.clip = 0;
  t.update.decay_exclude.clear();
  return t;
}

void compare_training(const Trajectory& trajectory, const std::vector<StepResult>& steps,
                      const Bounds& bounds, CaseReport& report) {
  for (std::size_t i = 0; i < steps.size(); ++i) {
    report.compare({fmt::format("training step {} loss", i), "", "training", {}, bounds.training_losses},
                   steps[i].loss, trajectory.losses[i]);
    const double allowed = i == 0 ? bounds.training_losses : bounds.training_norms;
    report.compare({fmt::format("training step {} gradient norm", i), "", "training", {}, allowed},
                   steps[i].raw_grad_norm, trajectory.norms[i]);
  }
}

}  // namespace switchyard

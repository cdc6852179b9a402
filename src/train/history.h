// History: the data behind the plots, the summary and the log lines. Lives on rank 0.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "config/config.h"
#include "metrics/metrics.h"
#include "metrics/svg_plot.h"
#include "train/step_cost.h"

namespace switchyard {

class History {
 public:
  void add_step(std::int64_t step, const StepResult& result);
  void add_eval(std::int64_t step, double loss);
  // Adds steps from an earlier part of the run, as lines of metrics.jsonl.
  void add_lines(const std::vector<std::string>& lines);
  bool has_eval() const { return !eval_.y.empty(); }
  double last_eval() const { return eval_.y.back(); }
  // Mean loss of the first and of the last quarter of the steps; NaN for fewer than eight steps.
  std::pair<double, double> loss_of_quarters() const;
  // Adds `final_loss` and `heldout_loss`: the last known values.
  void add_ends(nlohmann::json& summary) const;
  // Writes plots/loss.svg, plots/expert_load.svg (MoE models), plots/time_by_phase.svg under `folder`.
  void write_plots(const std::string& folder,
                   const std::vector<std::pair<std::string, double>>& phases) const;

 private:
  Series train_{"train", {}, {}}, eval_{"held out", {}, {}};
  std::vector<HeatPanel> load_;  // a step adds a column, so values are kept [column][row] until written
};

// The metrics of one step, named as in docs/run-files.md.
StepMetrics step_metrics(const TrainConfig& training, const StepResult& result, double seconds,
                         double tokens_per_rank, double flops_per_rank);

// The content of summary.json (docs/run-files.md). `cost` is the cost
// of the last step on rank 0, with the highest peak of all steps.
nlohmann::json run_summary(const Config& config, Trainer& trainer, const StepCost& cost);

}  // namespace switchyard

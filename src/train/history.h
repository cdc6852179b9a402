// History: what the plots, the summary and the log lines are made of. Lives on rank 0.
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
  // Steps of an earlier part of the run, as lines of metrics.jsonl.
  void add_lines(const std::vector<std::string>& lines);
  bool has_eval() const { return !eval_.y.empty(); }
  double last_eval() const { return eval_.y.back(); }
  // Mean loss of the first quarter of the steps and of the last; NaN for fewer than eight steps.
  std::pair<double, double> loss_of_quarters() const;
  // `final_loss` and `heldout_loss`: the last ones that there are.
  void add_ends(nlohmann::json& summary) const;
  // plots/loss.svg, plots/expert_load.svg (MoE models), plots/time_by_phase.svg under `folder`.
  void write_plots(const std::string& folder,
                   const std::vector<std::pair<std::string, double>>& phases) const;

 private:
  Series train_{"train", {}, {}}, eval_{"held out", {}, {}};
  std::vector<HeatPanel> load_;  // columns are appended, so values are kept [column][row] until written
};

// metrics of one step under the names of docs/formats.md.
StepMetrics step_metrics(const TrainConfig& training, const StepResult& result, double seconds,
                         double tokens_per_rank, double flops_per_rank);

// summary.json (docs/formats.md). `cost` is that of the last step on rank 0, with the highest peak of all
// steps.
nlohmann::json run_summary(const Config& config, Trainer& trainer, const StepCost& cost);

}  // namespace switchyard

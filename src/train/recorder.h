// Recorder: what rank 0 of a run writes down and shows, step by step.
#pragma once

#include <string>
#include <vector>

#include "train/history.h"
#include "train/run.h"

namespace switchyard {

// Everything of a run that rank 0 keeps besides the trainer.
class Recorder {
 public:
  // `peak`: FLOP/s that "% of peak" is of; 0 leaves it out.
  Recorder(RunObserver& observer, MetricsWriter& writer, double peak)
      : observer_(observer), writer_(writer), peak_(peak) {}

  // The run goes on after `step` steps: what the files say of those before is kept.
  void continue_from(std::int64_t step) { history_.add_lines(writer_.continue_from(step)); }

  void record(std::int64_t step, const StepResult& r, double seconds, Trainer& trainer,
              const BatchSizes& sizes);
  void record_eval(std::int64_t step, double loss);
  void finish_step(std::int64_t step) { writer_.write(step, metrics_); }
  History& history() { return history_; }

 private:
  RunObserver& observer_;
  MetricsWriter& writer_;
  double peak_;
  StepMetrics metrics_;
  History history_;
};

// Explains the figures of a step's line.
std::string legend_of_steps(const ModelConfig& model, double peak);

// The lines that people read at the end.
void add_summary_lines(RunReport& report, const nlohmann::json& summary, const History& history);

}  // namespace switchyard

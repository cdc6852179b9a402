// Recorder: writes and shows, step by step, what rank 0 of a run reports.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "train/history.h"
#include "train/run.h"

namespace switchyard {

// All data that rank 0 of a run keeps besides the trainer.
class Recorder {
 public:
  // `peak`: the FLOP/s behind the share of it; 0 leaves that out.
  Recorder(RunObserver& observer, MetricsWriter& writer, double peak)
      : observer_(observer), writer_(writer), peak_(peak) {}

  // The run resumes after `step` steps: what the files say about earlier steps is kept.
  void continue_from(std::int64_t step) { history_.add_lines(writer_.continue_from(step)); }

  // `shown`: its line is printed; a bad step's always is.
  void record(std::int64_t step, const StepResult& r, double seconds, Trainer& trainer,
              const BatchSizes& sizes, bool shown);
  void record_eval(std::int64_t step, std::optional<double> mean_loss);  // none: of no targets
  void finish_step(std::int64_t step) {
    writer_.write(step, metrics_);
    observer_.metrics(step, metrics_);
  }
  History& history() { return history_; }

 private:
  RunObserver& observer_;
  MetricsWriter& writer_;
  double peak_;
  StepMetrics metrics_;
  History history_;
};

// Explains the figures in a step's line.
std::string legend_of_steps(const ModelConfig& model, double peak, bool pairs);

// Adds the lines that people read at the end.
void add_summary_lines(RunReport& report, const nlohmann::json& summary, const History& history);

}  // namespace switchyard

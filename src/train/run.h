// Run: a training run, from its config to its output files.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "config/config.h"
#include "core/startup.h"
#include "data/dataset.h"
#include "metrics/metrics.h"
#include "metrics/svg_plot.h"
#include "parallel/comm/stop_signal.h"
#include "train/trainer.h"

namespace switchyard {

// Receives what a run shows while it trains. Called on rank 0 (and process 0) only.
class RunObserver {
 public:
  virtual ~RunObserver() = default;
  virtual void line(const std::string& text) = 0;
  virtual void progress(std::int64_t step, const std::string& text) = 0;
  // After a step, with all that metrics.jsonl has of it.
  virtual void metrics(std::int64_t, const StepMetrics&) {}
  // The signal by which the run is asked to end after its step, with a checkpoint; 0: none. Any rank of any
  // process calls it.
  virtual int asked_to_stop() { return stop_signal(); }
  // False: the process's signals are its caller's.
  virtual bool takes_signals() const { return true; }
};

// Ranks that live longer than a run, with their trainers.
struct RunPlace {
  std::function<void(const std::function<void(Context&)>&)> run;  // on every rank of this process
  std::function<Trainer&(Context&)> trainer;                      // of a rank
  std::function<std::int64_t&(Context&)> steps;                   // that the trainer has made
};

struct RunReport {
  std::string folder = {};
  std::vector<std::string> lines = {};  // the summary, for people
  std::string sample = {};              // text that the trained model wrote; "" without a tokenizer
  int stopped_by = 0;                   // the signal that ended the run early, after saving
};

// Trains as the config says on the ranks of all processes, which all make this
// call; process 0 writes the files. Errors in config, files and folders are
// found before the first step (Error usage); a later failure is Error(runtime). `startup`: what came before;
// its parts go to summary.json. `place`: trains there, on from the steps that were made; null: on ranks of
// its own, with weights as the config says.
RunReport run_training(const Config& config, Processes& processes, RunObserver& observer,
                       Startup startup = Startup(), const RunPlace* place = nullptr);

}  // namespace switchyard

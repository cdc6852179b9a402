// The scalars of a training step, and the two files they go to: JSON lines and TensorBoard events.
//
// docs/run-files.md lists the names and describes both files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "metrics/append_file.h"

namespace switchyard {

// One step's scalars, in the order in which they were first set.
class StepMetrics {
 public:
  // Sets `name`; a name set before keeps its place and gets the new value.
  void set(std::string name, double value);

  // The value of `name`, or nullptr when it was not set. Valid until the next set().
  const double* find(std::string_view name) const;

  const std::vector<std::pair<std::string, double>>& values() const { return values_; }

 private:
  std::vector<std::pair<std::string, double>> values_;
};

// One JSON object without a line end: {"step":0,"learning/loss":…}. Numbers have up to 17 significant digits,
// so that reading them back gives the same double; whole numbers have no fraction; NaN and infinities, which
// JSON lacks, are null.
std::string to_json_line(std::int64_t step, const StepMetrics& metrics);

// Writes each step to the requested files, at once and as a whole record. Not thread-safe.
class MetricsWriter {
 public:
  // Creates the files: `jsonl_path` itself, and events.out.tfevents.<seconds>.<host>.<process> in
  // `tensorboard_dir`, which is created when missing. An empty path means no file. An older file at
  // `jsonl_path` is replaced when the first step is written, unless continue_from() is called before.
  // Error(usage) when a file cannot be created; then no file is left behind or changed.
  MetricsWriter(std::string jsonl_path, const std::string& tensorboard_dir);

  // Continues an older file: keeps the lines of steps before `step`, drops the rest, and tells TensorBoard to
  // drop it too. Returns the kept lines. Call it before the first step is written, or never.
  std::vector<std::string> continue_from(std::int64_t step);

  // Appends one step. Error(runtime) names the file and the reason (disk full, ...); both files then end with
  // a whole record.
  void write(std::int64_t step, const StepMetrics& metrics);

  // Returns when all lines are on the disk; another thread may call it during write(). Error(runtime).
  void sync() const;

  // Closes the files; Error(runtime) for a write failure that the system
  // reports only now. Call it at most once.
  void close();

 private:
  std::string jsonl_path_;
  AppendFile jsonl_;
  AppendFile events_;
  bool fresh_ = true;  // the old content is still there
};

}  // namespace switchyard

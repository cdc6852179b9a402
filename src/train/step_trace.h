// StepTrace: a trace of all ranks in some steps of a run, one file for chrome://tracing (docs/run-files.md).
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "autograd/context.h"
#include "config/config.h"
#include "core/stream_log.h"
#include "core/trace.h"

namespace switchyard {

// Steps [begin, end); none when they are equal.
struct TracedSteps {
  std::int64_t begin = 0, end = 0;
};
// The steps out of `steps` that profiler, skip_first_n_steps_for_profiler and profiler_steps select.
// Error(usage) when they select none.
TracedSteps traced_steps(const Config& config, std::int64_t steps);

// One object for each rank; all ranks call before() and after() around every step.
class StepTrace {
 public:
  StepTrace(Context& context, TracedSteps steps, std::string file)
      : context_(context), steps_(steps), file_(std::move(file)) {}
  StepTrace(const StepTrace&) = delete;
  StepTrace& operator=(const StepTrace&) = delete;

  // Collective at the first traced step: synchronises the ranks' clocks.
  void before(std::int64_t step);
  // Collective after the last traced step: rank 0 writes the file. Error(runtime) when it cannot.
  void after(std::int64_t step);

  // The log of the current step; null outside traced steps.
  TraceLog* log() const { return context_.trace(); }
  bool any() const { return steps_.begin < steps_.end; }
  // This rank's ops: [{"op","pass","calls","seconds"}], slowest
  // first. Seconds are per traced step, without those of nested ops.
  nlohmann::json op_times() const;

 private:
  bool is_traced(std::int64_t step) const { return step >= steps_.begin && step < steps_.end; }
  std::string events() const;
  void write() const;

  Context& context_;
  const TracedSteps steps_;
  const std::string file_;
  std::int64_t start_ = 0;  // common start of all clocks
  TraceLog program_, progress_, kernels_, transfers_;
  std::optional<StreamLog> stream_;  // for a rank on a GPU
};

}  // namespace switchyard

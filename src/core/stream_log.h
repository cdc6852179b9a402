// StreamLog: records when the kernels that one rank issued to the GPU's streams ran, for a step's trace.
//
// The host issues kernels long before they run, so the times of ops on the host say little of the GPU's. A
// kernel is recorded where it is started (kernels/cuda/portable.h: launch), under the op that started it.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>
#include <vector>

#include "core/gpu.h"
#include "core/trace.h"

namespace switchyard {

class StreamLog {
 public:
  // Each event is numbered with the value that `layer` has when the event's kernel starts.
  explicit StreamLog(const std::atomic<std::int64_t>& layer);

  // Sets the log of this thread's kernels (null: none) and returns the previous one. The log moves with a
  // rank to another thread.
  static StreamLog* exchange_of_thread(StreamLog* log);
  static StreamLog* of_thread();

  // Called around the start of a kernel, or of a transfer between GPUs.
  void begin() { before_ = gpu::Moment::now(); }
  void end();

  // Waits for all recorded work and adds it to the trace logs, on their clock: `computation` gets the kernels
  // of the computation stream, `communication` the work of the other stream.
  void tell(TraceLog& computation, TraceLog& communication);

 private:
  struct Started {
    std::string_view op;
    std::int64_t layer;
    bool communicates;
    gpu::Moment begin, end;
  };
  const std::atomic<std::int64_t>& layer_;
  const gpu::Moment first_;
  const std::int64_t first_time_;  // on the trace's clock, when first_ was reached
  gpu::Moment before_;
  std::vector<Started> kernels_;
};

}  // namespace switchyard

// StreamLog: when the kernels that one rank gave to the GPU's streams ran, for a picture of a step.
//
// The host gives kernels long before they run, so the times of ops on the host say little of the GPU's. A
// kernel is noted where it is started (kernels/cuda/portable.h: launch), under the op that started it.
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
  // Events get the number that `layer` holds when their kernel starts.
  explicit StreamLog(const std::atomic<std::int64_t>& layer);

  // Kernels that the thread starts are noted here; null: nowhere. Goes with a rank to another thread. Returns
  // the one before.
  static StreamLog* exchange_of_thread(StreamLog* log);
  static StreamLog* of_thread();

  // Around the start of a kernel, or of a transfer between GPUs.
  void begin() { before_ = gpu::Moment::now(); }
  void end();

  // Waits for what is noted so far and tells the logs of it, on their clock: `computation` of the kernels of
  // that stream, `communication` of what the other one did.
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
  const std::int64_t first_time_;  // of the trace's clock, at first_
  gpu::Moment before_;
  std::vector<Started> kernels_;
};

}  // namespace switchyard

#include "bench/gpu_work.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "core/stream_log.h"
#include "kernels/cuda/planned.h"

namespace switchyard::bench {
namespace {

double in_seconds(std::int64_t nanoseconds) {
  return static_cast<double>(nanoseconds) * 1e-9;
}

std::int64_t host_reads_of(const Context& context) {
  std::int64_t reads = 0;
  for (const auto& [what, count] : context.host_reads.counts()) reads += count;
  return reads;
}

// The kernels of this rank in one step.
TraceLog kernels_of(Context& context, const std::function<void()>& step) {
  StreamLog stream(context.comm->position().layer);
  StreamLog* const before = StreamLog::exchange_of_thread(&stream);
  step();
  StreamLog::exchange_of_thread(before);
  TraceLog kernels, transfers;
  stream.tell(kernels, transfers);
  return kernels;
}

void add_times(const TraceLog& kernels, GpuWork& work) {
  std::map<std::string, double> by_op;
  std::int64_t busy = 0, begin = 0, end = 0;
  for (const TraceEvent& kernel : kernels.events()) {
    by_op[kernel.name.empty() ? "other" : std::string(kernel.name)] += in_seconds(kernel.end - kernel.begin);
    busy += kernel.end - kernel.begin;
    if (begin == 0) begin = kernel.begin;
    end = kernel.end;
  }
  std::vector<std::pair<std::string, double>> sorted(by_op.begin(), by_op.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  for (const auto& [op, time] : sorted) work.seconds_by_op[op] = time;
  work.kernel_seconds = in_seconds(busy);
  work.between_seconds = in_seconds(end - begin - busy);
}

}  // namespace

GpuWork count_gpu_work(Context& context, int steps, const std::function<void()>& step) {
  GpuWork work;
  if (!context.memory.device().is_gpu()) return work;
  const ProcessGroup world = everyone(*context.comm, "world");
  context.comm->barrier(world);
  const std::int64_t kernels = gpu::launches(), reads = host_reads_of(context);
  context.comm->barrier(world);
  for (int i = 0; i < steps; ++i) step();
  context.comm->barrier(world);
  work.kernels = static_cast<double>(gpu::launches() - kernels) / steps;
  work.host_reads = static_cast<double>(host_reads_of(context) - reads) / steps;
  context.comm->barrier(world);
  add_times(kernels_of(context, step), work);
  return work;
}

nlohmann::ordered_json json_of(const GpuWork& work) {
  if (!work.counted()) return nlohmann::ordered_json::object();
  return {{"kernels_a_step", work.kernels},
          {"host_reads_a_step", work.host_reads},
          {"kernel_seconds", work.kernel_seconds},
          {"between_kernels_seconds", work.between_seconds},
          {"kernel_seconds_by_op", work.seconds_by_op}};
}

std::vector<std::string> lines_of(const GpuWork& work) {
  if (!work.counted()) return {};
  constexpr std::size_t kMostOps = 6;
  std::string ops;
  std::size_t said = 0;
  for (const auto& [op, time] : work.seconds_by_op.items()) {
    if (said++ == kMostOps) break;
    ops += fmt::format("{}{} {:.0f}%", ops.empty() ? "" : ", ", op,
                       100 * time.get<double>() / work.kernel_seconds);
  }
  return {
      fmt::format("{:.1f} kernels and {:.1f} host reads a step; kernels take {:.3f} ms of a step with each "
                  "timed, {:.3f} ms lie between them",
                  work.kernels, work.host_reads, 1e3 * work.kernel_seconds, 1e3 * work.between_seconds),
      "of the kernels' time: " + ops};
}

}  // namespace switchyard::bench

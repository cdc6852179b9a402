// GpuWork: the kernels that a step gives the GPU, their time, and how often the host reads values.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "autograd/context.h"

namespace switchyard::bench {

struct GpuWork {
  double kernels = 0;     // started in a step, by all ranks of this process
  double host_reads = 0;  // in a step of this rank; each makes the host wait for the GPU
  // The rest is measured in one step of this rank, while every kernel is timed.
  nlohmann::ordered_json seconds_by_op = nlohmann::ordered_json::object();  // slowest first
  double kernel_seconds = 0;                                                // the sum of it
  double between_seconds = 0;  // from the first kernel's begin to the last one's end, without it

  bool counted() const { return kernels > 0; }
};

// Collective: all ranks call `step` `steps` times to count, and once more while kernels are timed. Returns
// the counts a step. On a device without kernels of a GPU nothing is called, and nothing is counted.
GpuWork count_gpu_work(Context& context, int steps, const std::function<void()>& step);

// The fields of a result: kernels_a_step, host_reads_a_step, kernel_seconds, between_kernels_seconds and
// kernel_seconds_by_op. None where nothing was counted.
nlohmann::ordered_json json_of(const GpuWork& work);
// For people: "512 kernels and 9 host reads a step; ...".
std::vector<std::string> lines_of(const GpuWork& work);

}  // namespace switchyard::bench

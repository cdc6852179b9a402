// Measures the peaks of the CPU or of a GPU, with which every other case is compared.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "bench/measure.h"

namespace switchyard::bench {

struct PeakReport {
  Peaks peaks;
  std::vector<Measurement> results;  // products in bf16 and f32, copy, update in place, read
};

// Bytes of each of the two arrays for measuring bandwidth: twice the last-level cache, at least 256 MiB, at
// most an eighth of the free memory.
std::size_t default_copy_bytes();

// Measures with `threads` threads side by side, for about five times `budget`
// seconds. The best round counts: a peak is what the machine can do. `details` adds
// the time of a core's tile loads and stores and of its reads from each cache.
PeakReport measure_peaks(int threads, double budget, std::size_t copy_bytes, bool details);

// Measures the GPU's peaks for about three times `budget` seconds: large products of our own kernels, and
// copies of `copy_bytes` bytes within its memory, by default 2 GiB. All sizes fit its memory.
PeakReport measure_gpu_peaks(ThreadPool& pool, double budget, std::optional<std::size_t> copy_bytes);
std::string gpu_name();

}  // namespace switchyard::bench

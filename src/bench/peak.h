// This machine's peaks, measured: what every other case is compared with.
#pragma once

#include <cstddef>
#include <vector>

#include "bench/measure.h"

namespace switchyard::bench {

struct PeakReport {
  Peaks peaks;
  std::vector<Measurement> results;  // products in bf16 and f32, copy, update in place, read
};

// Bytes of each of the two arrays that bandwidth is measured with: twice the last-level cache, at least 256
// MiB, at most an eighth of the free memory.
std::size_t default_copy_bytes();

// `threads` threads side by side; about five times `budget` seconds. The best of several rounds counts: a
// peak is what the machine can do. With `details` also what a core's tile loads and stores and reads from
// each cache take.
PeakReport measure_peaks(int threads, double budget, std::size_t copy_bytes, bool details);

// The same of the GPU: large products of our own kernels, and copies within its memory.
PeakReport measure_gpu_peaks(ThreadPool& pool, double budget);
std::string gpu_name();

}  // namespace switchyard::bench

// The processor cores and memory nodes that this process may use.
#pragma once

#include <cstddef>
#include <filesystem>

namespace switchyard {

// How many cores this process can keep busy: those of its affinity mask (taskset, numactl, mpirun --bind-to,
// Slurm), at most the processor time that its control group grants (docker --cpus, Kubernetes limits),
// rounded up; at least 1.
int usable_cores();

// The processor time that control groups grant this process, in cores; infinity where they do not limit it.
// Both versions' files (cpu.max; cpu.cfs_quota_us), of the process's own group and all above it; `root`
// stands for "/" in tests.
double granted_cores(const std::filesystem::path& root = "/");

// Spreads the pages of a range that nobody has touched yet over all memory nodes whose cores this process may
// use, so that every core finds the same bandwidth. Without effect on one node. For a process on one node of
// several (mpirun --map-by numa), memory is that node's by first touch, as the system does it anyway.
void spread_over_nodes(void* begin, std::size_t bytes);

}  // namespace switchyard

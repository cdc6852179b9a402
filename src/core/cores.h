// The processor cores and memory nodes that this process may use.
#pragma once

#include <cstddef>
#include <filesystem>

namespace switchyard {

// The number of cores this process can keep busy: the size of its affinity mask (set by taskset, numactl,
// mpirun --bind-to or Slurm), limited by the processor time that its control group grants (docker --cpus,
// Kubernetes limits), rounded up; at least 1.
int usable_cores();

// The processor time that control groups grant this process, in cores; infinity when they do not limit it.
// Reads the files of both versions (cpu.max; cpu.cfs_quota_us) for the process's own group and all its
// ancestors. Tests give another `root` than "/".
double granted_cores(const std::filesystem::path& root = "/");

// Spreads the pages of an untouched range over all memory nodes whose cores this process may use, so that
// every core sees the same bandwidth. Has no effect on one node. A process on one of several nodes (mpirun
// --map-by numa) gets that node's memory by first touch, which is the system's default.
void spread_over_nodes(void* begin, std::size_t bytes);

}  // namespace switchyard

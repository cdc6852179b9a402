#include "core/cores.h"

#include <numa.h>
#include <numaif.h>
#include <sched.h>

#include <algorithm>
#include <bitset>
#include <cmath>
#include <fstream>
#include <limits>
#include <string>
#include <thread>
#include <vector>

namespace switchyard {
namespace {

namespace fs = std::filesystem;
constexpr double kNoLimit = std::numeric_limits<double>::infinity();

int cores_of_affinity() {
  // The system refuses a mask that is smaller than its own.
  for (std::size_t cores = 1024; cores <= (std::size_t{1} << 20); cores *= 2) {
    std::vector<unsigned char> mask(cores / 8);
    if (sched_getaffinity(0, mask.size(), reinterpret_cast<cpu_set_t*>(mask.data())) != 0) continue;
    std::size_t count = 0;
    for (const unsigned char byte : mask) count += std::bitset<8>(byte).count();
    return static_cast<int>(count);
  }
  return static_cast<int>(std::thread::hardware_concurrency());
}

// Microseconds of a period granted by `quota`, a number or the word for none; both files' contents as read.
double cores_of(const std::string& quota, const std::string& period) {
  try {
    const double granted = std::stod(quota), of = std::stod(period);
    return granted > 0 && of > 0 ? granted / of : kNoLimit;  // version 1 writes -1 for no limit
  } catch (const std::logic_error&) {
    return kNoLimit;  // "max", or no such file
  }
}

std::string word_of(const fs::path& file, int index) {
  std::ifstream in(file);
  std::string word;
  for (int i = 0; i <= index && in; ++i) word.clear(), in >> word;
  return word;
}

// The least that `folder` and the groups above it up to `mount` grant.
double least_of_groups(const fs::path& mount, fs::path folder) {
  double least = kNoLimit;
  while (true) {
    least = std::min(least, cores_of(word_of(folder / "cpu.max", 0), word_of(folder / "cpu.max", 1)));
    least = std::min(
        least, cores_of(word_of(folder / "cpu.cfs_quota_us", 0), word_of(folder / "cpu.cfs_period_us", 0)));
    if (folder == mount || !folder.has_relative_path()) return least;
    folder = folder.parent_path();
  }
}

}  // namespace

int usable_cores() {
  const double granted = std::ceil(granted_cores());
  const int cores = cores_of_affinity();
  return std::max(1, granted < cores ? static_cast<int>(granted) : cores);
}

double granted_cores(const fs::path& root) {
  const fs::path all = root / "sys/fs/cgroup";
  double least = kNoLimit;
  std::ifstream groups(root / "proc/self/cgroup");
  // "0::/group" (version 2) or "4:cpu,cpuacct:/group"; the group may lie outside of what is mounted here.
  for (std::string line; std::getline(groups, line);) {
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(std::min(second + 2, line.size()));
    if (!controllers.empty() && ("," + controllers + ",").find(",cpu,") == std::string::npos) continue;
    const fs::path mount = controllers.empty() ? all : all / controllers;
    const fs::path folder = group.empty() ? mount : mount / group;
    std::error_code ignored;
    least = std::min(least, least_of_groups(mount, fs::is_directory(folder, ignored) ? folder : mount));
  }
  return least;
}

void spread_over_nodes(void* begin, std::size_t bytes) {
  static const bool has_nodes = numa_available() >= 0;
  if (!has_nodes) return;
  bitmask* const nodes = numa_get_run_node_mask();
  if (numa_bitmask_weight(nodes) > 1) mbind(begin, bytes, MPOL_INTERLEAVE, nodes->maskp, nodes->size + 1, 0);
  numa_bitmask_free(nodes);
}

}  // namespace switchyard

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

#include "core/control_group.h"

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

}  // namespace

int usable_cores() {
  const double granted = std::ceil(granted_cores());
  const int cores = cores_of_affinity();
  return std::max(1, granted < cores ? static_cast<int>(granted) : cores);
}

double granted_cores(const fs::path& root) {
  double least = kNoLimit;
  for_control_groups(root, "cpu", [&](const fs::path& group) {
    least = std::min(least, cores_of(word_of(group / "cpu.max", 0), word_of(group / "cpu.max", 1)));
    least = std::min(
        least, cores_of(word_of(group / "cpu.cfs_quota_us", 0), word_of(group / "cpu.cfs_period_us", 0)));
  });
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

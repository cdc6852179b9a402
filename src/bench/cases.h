// The cases of `switchyard bench`, one file each.
#pragma once

#include <vector>

#include "bench/keys.h"
#include "bench/measure.h"

namespace switchyard::bench {

struct Case {
  const char* name;
  const char* help;
  std::vector<Key> (*keys)();
  // What to measure. Throws Error(usage) for values that make no sense together, before anything is measured.
  std::vector<Job> (*jobs)(const Keys& keys);
};

std::vector<Key> gmm_keys();
std::vector<Job> gmm_jobs(const Keys& keys);

}  // namespace switchyard::bench

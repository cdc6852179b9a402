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
  bool own_threads = false;  // as many as its ranks need: the key threads means nothing to it
  bool with_config = false;  // CONFIG.yml and a config's keys may stand beside its own
};

std::vector<Key> gmm_keys();
std::vector<Job> gmm_jobs(const Keys& keys);
std::vector<Key> moe_keys();
std::vector<Job> moe_jobs(const Keys& keys);
std::vector<Key> attention_keys();
std::vector<Job> attention_jobs(const Keys& keys);
std::vector<Key> gated_delta_keys();
std::vector<Job> gated_delta_jobs(const Keys& keys);
std::vector<Key> loss_keys();
std::vector<Job> loss_jobs(const Keys& keys);
std::vector<Key> optimizer_keys();
std::vector<Job> optimizer_jobs(const Keys& keys);
std::vector<Key> checkpoint_keys();
std::vector<Job> checkpoint_jobs(const Keys& keys);
std::vector<Key> comm_keys();
std::vector<Job> comm_jobs(const Keys& keys);
std::vector<Key> sampling_keys();
std::vector<Job> sampling_jobs(const Keys& keys);
std::vector<Key> train_keys();
std::vector<Job> train_jobs(const Keys& keys);
std::vector<Key> generate_keys();
std::vector<Job> generate_jobs(const Keys& keys);

}  // namespace switchyard::bench

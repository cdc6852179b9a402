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
  // Lists what to measure. Throws Error(usage) for values that do not fit together, before measuring.
  std::vector<Job> (*jobs)(const Keys& keys);
  bool own_threads = false;  // has as many threads as its ranks need; the key `threads` has no effect
  bool with_config = false;  // also accepts CONFIG.yml and config keys, `device` among them
  const char* only_on_host = nullptr;  // the reason why no GPU can do the work; null: one can
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
std::vector<Key> grammar_keys();
std::vector<Job> grammar_jobs(const Keys& keys);
std::vector<Key> train_keys();
std::vector<Job> train_jobs(const Keys& keys);
std::vector<Key> generate_keys();
std::vector<Job> generate_jobs(const Keys& keys);

}  // namespace switchyard::bench

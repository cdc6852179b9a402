// Statistics: the numbers behind /metrics. Any thread may call any function.
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "serve/text.h"

namespace switchyard::serve {

// Counts since the start.
struct Counts {
  std::int64_t stopped = 0, length = 0, abandoned = 0, refused = 0, failed = 0;  // texts by their end
  std::int64_t prompt_tokens = 0, shared_tokens = 0, new_tokens = 0;  // read, copied from a slot, generated
  std::int64_t prompt_calls = 0, token_calls = 0;                     // of the model
  std::int64_t drafts = 0, accepted_drafts = 0;
  double prompt_seconds = 0, token_seconds = 0;  // of these calls
};

// The (token, expert) assignments of one layer's experts.
struct LayerAssignments {
  std::int64_t layer;
  std::vector<double> of_expert;
};

class Statistics {
 public:
  void count_finish(Finish how);
  template <typename Change>
  void change(const Change& change_counts) {
    const std::lock_guard lock(mutex_);
    change_counts(counts_);
  }
  Counts counts() const;

  // Adds assignments of `layers`, `experts` numbers a layer, the same layers in every call.
  void add_assignments(std::span<const double> assignments, std::span<const std::int64_t> layers,
                       std::size_t experts);
  std::vector<LayerAssignments> assignments() const;

 private:
  mutable std::mutex mutex_;
  Counts counts_;
  std::vector<LayerAssignments> assignments_;
};

// Returns the numbers in Prometheus' text format. `running` texts hold a slot, `waiting` texts wait for one.
std::string metrics_text(const Statistics& statistics, std::int64_t running, std::int64_t waiting);

}  // namespace switchyard::serve

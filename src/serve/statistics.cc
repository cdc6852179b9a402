#include "serve/statistics.h"

namespace switchyard::serve {

void Statistics::count_finish(Finish how) {
  change([&](Counts& counts) {
    (how == Finish::stop     ? counts.stopped
     : how == Finish::length ? counts.length
     : how == Finish::failed ? counts.failed
                             : counts.abandoned) += 1;
  });
}

Counts Statistics::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

Timings Statistics::timings() const {
  const std::lock_guard lock(mutex_);
  return timings_;
}

void Statistics::set_cache_use(CacheUse use) {
  const std::lock_guard lock(mutex_);
  cache_use_ = use;
}

CacheUse Statistics::cache_use() const {
  const std::lock_guard lock(mutex_);
  return cache_use_;
}

void Statistics::add_assignments(std::span<const double> assignments, std::span<const std::int64_t> layers,
                                 std::size_t experts) {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (assignments_.size() == i) assignments_.push_back({layers[i], std::vector<double>(experts)});
    for (std::size_t e = 0; e < experts; ++e) assignments_[i].of_expert[e] += assignments[i * experts + e];
  }
}

std::vector<LayerAssignments> Statistics::assignments() const {
  const std::lock_guard lock(mutex_);
  return assignments_;
}

}  // namespace switchyard::serve

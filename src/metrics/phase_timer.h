// Measures a step's wall seconds by phase (data,
// forward, backward, optimizer, collectives, ...).
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"

namespace switchyard {

// Phases nest, and each second is counted once: while an inner phase runs, the outer phase's clock stops, so
// the phases add up to the time inside outermost scopes. One timer per rank; not thread-safe.
class PhaseTimer {
 public:
  // Seconds on a monotonic clock; a test passes its own clock.
  using Clock = double (*)();

  explicit PhaseTimer(Clock clock = steady_seconds) : clock_(clock) {}
  PhaseTimer(const PhaseTimer&) = delete;
  PhaseTimer& operator=(const PhaseTimer&) = delete;

  // Attributes the time until its end to one phase. Scopes end in the reverse order of their start.
  class [[nodiscard]] Scope {
   public:
    Scope(PhaseTimer& timer, std::string_view phase) : timer_(timer) { timer_.enter(phase); }
    ~Scope() { timer_.leave(); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    PhaseTimer& timer_;
  };

  Scope scope(std::string_view phase) { return Scope(*this, phase); }

  // Seconds by phase, in the order of first use; a phase that is running counts up to its last inner scope.
  const std::vector<std::pair<std::string, double>>& totals() const { return totals_; }

  // Adds seconds that passed elsewhere, such as in an earlier process of the same run.
  void add(std::string_view phase, double seconds) { totals_[index_of(phase)].second += seconds; }

  // Resets all totals, e.g. after warm-up. No scope may be open.
  void reset() {
    CHECK(open_.empty(), "open scopes: {}", open_.size());
    totals_.clear();
  }

 private:
  static double steady_seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

  std::size_t index_of(std::string_view phase) {
    for (std::size_t i = 0; i < totals_.size(); ++i) {
      if (totals_[i].first == phase) return i;
    }
    totals_.emplace_back(std::string(phase), 0.0);
    return totals_.size() - 1;
  }

  void charge_running_phase() {
    const double now = clock_();
    if (!open_.empty()) totals_[open_.back()].second += now - charged_until_;
    charged_until_ = now;
  }

  void enter(std::string_view phase) {
    const std::size_t index = index_of(phase);
    charge_running_phase();
    open_.push_back(index);
  }

  void leave() {
    charge_running_phase();
    open_.pop_back();
  }

  Clock clock_;
  std::vector<std::pair<std::string, double>> totals_;
  std::vector<std::size_t> open_;  // indices into totals_, innermost last
  double charged_until_ = 0;
};

}  // namespace switchyard

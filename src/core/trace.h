// TraceLog: the timed events of one thread, for a step's trace.
//
// Code that records events holds a pointer to the log of its thread, null when no trace is wanted: then a
// span costs one test.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard {

struct TraceEvent {
  std::string_view name, category;  // with static storage
  std::int64_t begin = 0, end = 0;  // nanoseconds on a monotonic clock
  std::int64_t number = -1;         // the event's step or layer; -1: none
  // Set only for a collective.
  std::string axis;
  std::string_view where;  // the step's phase
  std::int64_t bytes = -1;
  double wait_seconds = 0;
};

class TraceLog {
 public:
  static std::int64_t now() {
    using std::chrono::nanoseconds;
    return std::chrono::duration_cast<nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
  void add(TraceEvent event) { events_.push_back(std::move(event)); }
  const std::vector<TraceEvent>& events() const { return events_; }

 private:
  std::vector<TraceEvent> events_;  // in the order in which events end
};

// Records an event from here to the end of the scope; nothing with a null log.
class TraceSpan {
 public:
  TraceSpan(TraceLog* log, std::string_view name, std::string_view category, std::int64_t number = -1)
      : log_(log) {
    if (log_ != nullptr) {
      event_.name = name;
      event_.category = category;
      event_.number = number;
      event_.begin = TraceLog::now();
    }
  }
  ~TraceSpan() {
    if (log_ == nullptr) return;
    event_.end = TraceLog::now();
    log_->add(std::move(event_));
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  TraceLog* log_;
  TraceEvent event_;
};

}  // namespace switchyard

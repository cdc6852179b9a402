// Position: the point that a rank has reached in its run, for fault messages and for counters.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <string>

#include "core/trace.h"

namespace switchyard {

// The trainer and the decoder set it; any thread reads it.
struct Position {
  std::atomic<std::int64_t> step{-1};       // -1 before the first one
  std::atomic<std::int64_t> layer{-1};      // -1 outside the layers
  std::atomic<const char*> phase{"start"};  // a literal
  TraceLog* trace = nullptr;                // used only by the rank's own thread
};
// " in layer 2, step 17 (backward)"; empty before the first step.
std::string to_string(const Position& position);

// Sets the phase of the step while alive; its end restores the previous phase.
class PhaseMark {
 public:
  PhaseMark(Position& position, const char* phase)
      : position_(position),
        before_(position.phase),
        exceptions_(std::uncaught_exceptions()),
        span_(position.trace, phase, "phase") {
    position.phase = phase;
  }
  ~PhaseMark() {
    if (std::uncaught_exceptions() == exceptions_) position_.phase = before_;  // else the message needs it
  }
  PhaseMark(const PhaseMark&) = delete;
  PhaseMark& operator=(const PhaseMark&) = delete;

 private:
  Position& position_;
  const char* before_;
  const int exceptions_;
  const TraceSpan span_;
};

}  // namespace switchyard

#include "grammar/work_limit.h"

#include <optional>

#include "core/running_clock.h"
#include "grammar/grammar.h"

namespace switchyard::grammar {

namespace {

using Clock = RunningClock;
thread_local std::optional<Clock::time_point> work_ends;

}  // namespace

WorkLimit::WorkLimit(std::chrono::milliseconds most) : outermost_(!work_ends) {
  if (outermost_) work_ends = Clock::now() + most;
}

WorkLimit::~WorkLimit() {
  if (outermost_) work_ends.reset();
}

void WorkLimit::check() {
  if (work_ends && Clock::now() > *work_ends)
    throw GrammarError("a grammar that takes so long to make is not kept");
}

}  // namespace switchyard::grammar

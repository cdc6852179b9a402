// RankFiber: a rank that Workers runs as a fiber (internal to workers.cc and rank_fiber.cc).
//
// A wake-up may arrive before the rank has suspended, so the waker and the parking thread both exchange the
// rank's state: a parked rank becomes ready, and so does a rank that was woken before its thread parked it.
// Spurious wake-ups are allowed: the rank tests its condition again.
#pragma once

#include <atomic>
#include <functional>
#include <utility>

#include "core/current_memory.h"
#include "core/fence.h"
#include "core/fiber.h"
#include "core/stream_log.h"
#include "core/workers.h"

namespace switchyard {

struct RankFiber {
  enum class State { running, parked, woken };

  RankFiber(Workers& owner, std::function<void()> body) : workers(owner), fiber(std::move(body)) {}

  Workers& workers;
  Fiber fiber;
  std::atomic<State> state{State::woken};
  // When the rank's wait ends even without a wake-up.
  std::atomic<Workers::Clock::time_point> deadline{Workers::Clock::time_point::max()};
  int core = -1;                    // the core that ran the rank last
  ThreadMemory memory;              // saved while no thread runs the rank
  std::string_view op;              // likewise: the op it runs (core/fence.h)
  StreamLog* stream_log = nullptr;  // likewise: the log of its GPU kernels
};

}  // namespace switchyard

// RankFiber: a rank that Workers run (internal to workers.cc and rank_fiber.cc).
//
// Whoever wakes a rank may come before it is suspended, so both write its state and see what it was: a rank
// that was parked goes to those that are ready, and one that was woken when its thread parks it goes there,
// too. It may be woken in vain: what it waits for is asked again.
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
  // When its wait ends in any case.
  std::atomic<Workers::Clock::time_point> deadline{Workers::Clock::time_point::max()};
  int core = -1;                    // that ran it last
  ThreadMemory memory;              // while no thread runs it
  std::string_view op;              // the same: what it runs (core/fence.h)
  StreamLog* stream_log = nullptr;  // the same: where its kernels on a GPU are noted
};

}  // namespace switchyard

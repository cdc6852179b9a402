// Decorators that record a rank's collectives: counts for metrics and `plan`, events for traces.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "parallel/comm/comm_backend.h"

namespace switchyard {

// This rank's collectives of one kind since the last reset. `bytes`: bytes_sent(). `wait_seconds`: time spent
// waiting for other ranks to arrive.
struct CollectiveCount {
  std::string kind;
  std::string axis;
  std::string where;  // Position's phase
  std::int64_t calls = 0;
  std::int64_t bytes = 0;
  double wait_seconds = 0;
};

// A started collective is counted where its result is needed; its wait_seconds are the wait there.
class CountedBackend : public CommDecorator {
 public:
  using CommDecorator::CommDecorator;
  double carry_out(const ProcessGroup& group, const CollectiveCall& call, const Operands& operands) override;
  double finish(StartedCollective& started) override;

  // Ordered by kind, then axis, then where.
  std::vector<CollectiveCount> counts() const;
  void reset_counts() { counts_.clear(); }

 private:
  void count(const CollectiveCall& call, std::int64_t bytes, double wait_seconds);

  std::map<std::tuple<std::string, std::string, std::string>, CollectiveCount> counts_;
};

// Writes an event for each collective when the position has a trace.
class TracedBackend : public CommDecorator {
 public:
  using CommDecorator::CommDecorator;
  double carry_out(const ProcessGroup& group, const CollectiveCall& call, const Operands& operands) override;
  double finish(StartedCollective& started) override;
};

}  // namespace switchyard

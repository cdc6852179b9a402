#include "parallel/comm/counted.h"

namespace switchyard {

double CountedBackend::carry_out(const ProcessGroup& group, const CollectiveCall& call,
                                 const Operands& operands) {
  const double waited = inner().carry_out(group, call, operands);
  if (call.kind != Collective::make_together) count(call, bytes_sent(group, call, operands), waited);
  return waited;
}

double CountedBackend::finish(StartedCollective& started) {
  const double waited = inner().finish(started);
  count(started.call, bytes_sent(started.group, started.call, started.operands), waited);
  return waited;
}

std::vector<CollectiveCount> CountedBackend::counts() const {
  std::vector<CollectiveCount> counts;
  for (const auto& [key, count] : counts_) counts.push_back(count);
  return counts;
}

void CountedBackend::count(const CollectiveCall& call, std::int64_t bytes, double wait_seconds) {
  const std::string kind(name_of(call.kind)), axis(call.axis), where = position().phase.load();
  CollectiveCount& count = counts_[{kind, axis, where}];
  count.kind = kind;
  count.axis = axis;
  count.where = where;
  count.calls += 1;
  count.bytes += bytes;
  count.wait_seconds += wait_seconds;
}

namespace {

// work() returns the seconds waited.
template <typename Work>
double traced(const Position& position, const ProcessGroup& group, const CollectiveCall& call,
              const Operands& operands, const Work& work) {
  if (position.trace == nullptr) return work();
  TraceEvent event;
  event.begin = TraceLog::now();
  event.wait_seconds = work();
  event.end = TraceLog::now();
  event.name = name_of(call.kind);
  event.category = call.kind == Collective::make_together ? "together" : "collective";
  event.number = position.layer;
  if (call.kind != Collective::make_together) {
    event.axis = call.axis;
    event.where = position.phase.load();
    event.bytes = bytes_sent(group, call, operands);
  }
  const double waited = event.wait_seconds;
  position.trace->add(std::move(event));
  return waited;
}

}  // namespace

double TracedBackend::carry_out(const ProcessGroup& group, const CollectiveCall& call,
                                const Operands& operands) {
  return traced(position(), group, call, operands, [&] { return inner().carry_out(group, call, operands); });
}

double TracedBackend::finish(StartedCollective& started) {
  return traced(position(), started.group, started.call, started.operands,
                [&] { return inner().finish(started); });
}

}  // namespace switchyard

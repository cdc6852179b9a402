#include "parallel/comm/abstract.h"

#include <algorithm>

#include "parallel/comm/reduce.h"

namespace switchyard {
namespace {

// The bytes that determine the time: sent by this rank, or received when these are more.
Transfer transfer_of(const ProcessGroup& group, const CollectiveCall& call, const Operands& operands) {
  switch (call.kind) {
    case Collective::all_reduce:
      return {call.kind, group, 2 * call.size * element_bytes(call.type) * (group.size() - 1) / group.size()};
    case Collective::ragged_all_to_all: {
      std::int64_t received = 0;
      for (std::size_t i = 0; i < operands.receive.counts.size(); ++i) {
        if (static_cast<int>(i) != group.index) received += operands.receive.counts[i];
      }
      return {call.kind, group, std::max(bytes_sent(group, call, operands), received * call.size)};
    }
    case Collective::broadcast:
      return {call.kind, group, call.size};
    default:
      return {call.kind, group, bytes_sent(group, call, operands)};
  }
}

}  // namespace

double AbstractBackend::carry_out(const ProcessGroup& group, const CollectiveCall& call,
                                  const Operands& operands) {
  return clock_.transfer(transfer_of(group, call, operands));
}

void AbstractBackend::start(const std::shared_ptr<StartedCollective>& started) {
  started->end = clock_.start(transfer_of(started->group, started->call, started->operands));
}

double AbstractBackend::finish(StartedCollective& started) {
  return clock_.wait(started.end);
}

}  // namespace switchyard

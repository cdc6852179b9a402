#include "dist/comm/abstract.h"

#include "dist/comm/reduce.h"

namespace switchyard {
namespace {

std::int64_t others(const Group& group) {
  return static_cast<std::int64_t>(group.ranks.size()) - 1;
}

}  // namespace

double AbstractCommunicator::time(const Transfer& transfer) {
  return starting_ ? clock_.start(transfer) : clock_.transfer(transfer);
}

double AbstractCommunicator::do_start(const std::function<double()>& work) {
  starting_ = true;
  const double done = work();
  starting_ = false;
  return done;
}

double AbstractCommunicator::do_finish(const std::function<double()>&, double done) {
  return clock_.wait(done);
}

double AbstractCommunicator::do_all_gather(const Group& group, const CollectiveCall& call, const void*,
                                           void*) {
  return time({call.kind, group, call.size * others(group)});
}

double AbstractCommunicator::do_reduce_scatter(const Group& group, const CollectiveCall& call, const void*,
                                               void*) {
  return time({call.kind, group, call.size * element_bytes(call.type) * others(group)});
}

double AbstractCommunicator::do_all_reduce(const Group& group, const CollectiveCall& call, void*) {
  const std::int64_t bytes = call.size * element_bytes(call.type);
  return time({call.kind, group, 2 * bytes * others(group) / (others(group) + 1)});
}

double AbstractCommunicator::do_all_to_all(const Group& group, const CollectiveCall& call, const void*,
                                           void*) {
  return time({call.kind, group, call.size * others(group)});
}

double AbstractCommunicator::do_ragged_all_to_all(const Group& group, const CollectiveCall& call,
                                                  const RaggedSide& side) {
  // The busier direction decides.
  std::int64_t sent = 0, received = 0;
  for (std::size_t i = 0; i < side.send_counts.size(); ++i) {
    if (static_cast<int>(i) == group.index) continue;
    sent += side.send_counts[i];
    received += side.recv_counts[i];
  }
  return time({call.kind, group, std::max(sent, received) * call.size});
}

double AbstractCommunicator::do_broadcast(const Group& group, const CollectiveCall& call, void*) {
  return time({call.kind, group, call.size});
}

double AbstractCommunicator::do_barrier(const Group& group, const CollectiveCall& call) {
  return time({call.kind, group, 0});
}

}  // namespace switchyard

// ProcessBackend: a backend whose ranks are in several processes. It also offers checks and deadlines to
// backends that move bytes and have neither.
#pragma once

#include "parallel/comm/comm_backend.h"

namespace switchyard {

class ProcessBackend : public CommBackend {
 public:
  // Waits until all ranks of `group` make this call, and ends the run when they make different calls, as a
  // collective would. Sends a message between each two ranks, no operands. Returns the seconds waited.
  virtual double agree(const ProcessGroup& group, const CollectiveCall& call, const Operands& operands) = 0;

  // Polls done() until it returns true, with the deadline of a collective whose ranks have all arrived: ends
  // the run when the deadline passes or another rank fails.
  virtual void wait_until(const ProcessGroup& group, const CollectiveCall& call,
                          const std::function<bool()>& done) = 0;

  // second_channel() with its exact type.
  virtual std::unique_ptr<ProcessBackend> second_process_channel() = 0;
};

}  // namespace switchyard

// ProcessBackend: a backend whose ranks are in several processes, and what it does for a way to move bytes
// that has neither checks nor deadlines of its own.
#pragma once

#include "parallel/comm/comm_backend.h"

namespace switchyard {

class ProcessBackend : public CommBackend {
 public:
  // Waits until all ranks of `group` make this call, and ends the run when they call something else, as a
  // collective would. Moves a message between each two ranks and no operands. Returns the seconds waited.
  virtual double agree(const ProcessGroup& group, const CollectiveCall& call, const Operands& operands) = 0;

  // Asks done() again and again until it says so, with the deadline of a collective whose ranks have come:
  // ends the run when it passes or another rank fails.
  virtual void wait_until(const ProcessGroup& group, const CollectiveCall& call,
                          const std::function<bool()>& done) = 0;

  // second_channel() as what it is here.
  virtual std::unique_ptr<ProcessBackend> second_process_channel() = 0;
};

}  // namespace switchyard

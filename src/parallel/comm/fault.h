// Injected faults: tests make one rank of a run fail at a place of their choice.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "parallel/comm/comm_backend.h"

namespace switchyard {

struct Fault {
  enum class Kind {
    kill,       // the process receives SIGKILL
    stop,       // the process receives SIGSTOP
    exception,  // the rank throws
    mismatch,   // the rank calls another collective than the others
    sleep,      // the rank never arrives
    nan,        // the rank's loss (phase forward) or gradient (phase gradients) is not a number
    flip,       // a bit of the rank's copy of a weight flips (phase optimizer)
    check,      // a CHECK of the rank fails
  };
  Kind kind = Kind::kill;
  int rank = 0;
  std::int64_t step = 0;
  std::string phase;              // forward, dispatch, backward, gradients or optimizer
  std::int64_t calls_before = 0;  // collectives of the phase that the rank joins before the fault
  std::int64_t steps = 1;         // for nan: the number of consecutive steps
};

// The fault in the environment variable SWITCHYARD_FAULT, written as
// "kind=kill,rank=3,step=1,phase=dispatch,calls_before=0,steps=1"; the last two are optional. Empty when it
// is not set; Error(usage) when it cannot be parsed.
std::optional<Fault> fault_from_environment();

// True when the fault changes the rank's numbers, not a collective.
bool is_numeric(Fault::Kind kind);

// True when `fault` makes the numbers of a rank at `position` wrong now,
// for a fault of this kind in this phase.
bool suffers(const std::optional<Fault>& fault, const Position& position, Fault::Kind kind,
             std::string_view phase);

// Makes a non-numeric fault happen at the collective that it names.
class FaultyBackend : public CommDecorator {
 public:
  FaultyBackend(std::unique_ptr<CommBackend> inner, Fault fault)
      : CommDecorator(std::move(inner)), fault_(std::move(fault)) {}
  double carry_out(const ProcessGroup& group, const CollectiveCall& call, const Operands& operands) override;
  void start(const std::shared_ptr<StartedCollective>& started) override;

 private:
  CollectiveCall suffer(CollectiveCall call);  // returns the call to make instead

  std::optional<Fault> fault_;  // empty once it happened
};

}  // namespace switchyard

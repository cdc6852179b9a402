// Faults on purpose: what a test makes one rank of a run do at a place of its choice.
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
    kill,       // the process gets SIGKILL
    stop,       // the process gets SIGSTOP
    exception,  // the rank throws
    mismatch,   // the rank calls another collective than the others
    sleep,      // the rank never comes
    nan,        // the rank's loss (phase forward) or gradient (phase gradients) is not a number
    flip,       // a bit of the rank's copy of a weight flips (phase optimizer)
  };
  Kind kind = Kind::kill;
  int rank = 0;
  std::int64_t step = 0;
  std::string phase;              // forward, dispatch, backward, gradients or optimizer
  std::int64_t calls_before = 0;  // collectives of the phase that this rank still takes part in
  std::int64_t steps = 1;         // of nan: how many, one after the other
};

// The fault of the environment variable SWITCHYARD_FAULT, written as
// "kind=kill,rank=3,step=1,phase=dispatch,calls_before=0,steps=1"; the last two may be left out. Nothing when
// it is not set; Error(usage) when it cannot be read.
std::optional<Fault> fault_from_environment();

// Whether the fault is in the rank's numbers, not in a collective.
bool is_numeric(Fault::Kind kind);

// Whether the numbers of a rank that has `fault` and is at `position` should be wrong now, by a fault of this
// kind in this phase.
bool suffers(const std::optional<Fault>& fault, const Position& position, Fault::Kind kind,
             std::string_view phase);

// Makes a fault that is not numeric happen at the collective that it names.
class FaultyBackend : public CommDecorator {
 public:
  FaultyBackend(std::unique_ptr<CommBackend> inner, Fault fault)
      : CommDecorator(std::move(inner)), fault_(std::move(fault)) {}
  double carry_out(const ProcessGroup& group, const CollectiveCall& call, const Operands& operands) override;
  void start(const std::shared_ptr<StartedCollective>& started) override;

 private:
  CollectiveCall suffer(CollectiveCall call);  // the call that is made in its place

  std::optional<Fault> fault_;  // nothing once it happened
};

}  // namespace switchyard

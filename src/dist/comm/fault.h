// Faults on purpose: what a test makes one rank of a run do at a place of its choice.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace switchyard {

struct Fault {
  enum class Kind {
    kill,       // the process gets SIGKILL
    stop,       // the process gets SIGSTOP
    exception,  // the rank throws
    mismatch,   // the rank calls another collective than the others
    sleep,      // the rank never comes
  };
  Kind kind = Kind::kill;
  int rank = 0;
  std::int64_t step = 0;
  std::string phase;              // forward, dispatch, backward, gradients or optimizer
  std::int64_t calls_before = 0;  // collectives of the phase that this rank still takes part in
};

// The fault of the environment variable SWITCHYARD_FAULT, written as
// "kind=kill,rank=3,step=1,phase=dispatch,calls_before=0"; the last may be left out. Nothing when it is not
// set; Error(usage) when it cannot be read.
std::optional<Fault> fault_from_environment();

// Does a fault of any kind but mismatch to the calling rank. Error(runtime) for an exception.
void happen(const Fault& fault);

}  // namespace switchyard

// Collectives between ranks that share a process: each reads the other ranks' memory directly.
#pragma once

#include <functional>

#include "core/workers.h"
#include "parallel/comm/communicator.h"

namespace switchyard {

// Runs body(communicator of rank r) for all ranks of `workers` and returns when all have ended. The first
// exception of any rank makes the other ranks' collectives fail at once, and is rethrown when all have ended:
// with several ranks as an Error whose message begins with the rank (its kind is runtime unless the exception
// was an Error of another kind). A rank that returns early is not an error by itself. `timeout_seconds` is
// the deadline of one collective, from this rank's arrival; the error names rank, collective, axis and the
// missing ranks. Nothing can end a rank from outside: when a rank has not ended four seconds after a failure,
// a line says so (core/messages.h) and the call waits on, as a library may not end its process.
void run_local_ranks(Workers& workers, double timeout_seconds,
                     const std::function<void(Communicator&)>& body);

// Runs `ranks` ranks on all cores.
void run_local_ranks(int ranks, double timeout_seconds, const std::function<void(Communicator&)>& body);

// For programs: from now on such a rank ends the process instead, with the line on standard error and the
// error's exit status.
void end_process_with_stuck_ranks();

}  // namespace switchyard

// Processes: those that one mpirun started, and their ranks. Without mpirun there is one process and no MPI.
//
// A run over several processes goes through these stages, in each of them alike:
// 1. join_processes(), first thing, before any thread exists.
// 2. Preparations. One that fails calls agree(&error) instead of going on; the others learn of it in agree()
// or
//    run_ranks(), which calls it. Process 0 then throws the error, the others Silent: it is printed once.
// 3. run_ranks(). From here on a failure ends the process at once, with one line and a nonzero exit status,
// as
//    other threads and processes cannot be brought back from what they are in.
#pragma once

#include <functional>
#include <memory>

#include "core/error.h"
#include "core/workers.h"
#include "parallel/comm/communicator.h"

namespace switchyard {

// What the environment says of a launcher such as mpirun. Without one: {false, 0, 1}.
struct Launch {
  bool launched = false;
  int process = 0;
  int processes = 1;  // 0 where the launcher does not tell
};
Launch launch_from_environment();

// Ends this process with the exit status of its kind but without a message: process 0 has the message.
class Silent : public Error {
 public:
  explicit Silent(Kind kind) : Error(kind, "process 0 tells why") {}
};

class Processes {
 public:
  virtual ~Processes() = default;  // leaves the others in good order unless the run failed
  virtual int index() const = 0;
  virtual int count() const = 0;
  // Cores this process may keep busy, other processes on the same cores considered; at least 1.
  virtual int cores() const = 0;

  // All processes call it once, each with the error that ended its preparations or null. When all are null it
  // returns; else it throws the first failing process's error on process 0 and Silent on the others.
  // Error(runtime) after `timeout_seconds` without an answer.
  virtual void agree(const Error* failure, double timeout_seconds) = 0;
  virtual bool agreed() const = 0;

  // Runs body(communicator of rank r) for the ranks of `workers`, of which there are as many in every
  // process: n in process p are ranks p·n onwards. Agrees first unless done. With one process as
  // run_local_ranks; with more, each is a thread, and the first failure of any rank ends this process: see
  // stage 3.
  // `device` is where their tensors are: between GPUs of several processes these go through NCCL, each
  // process having one rank (Error(usage) else).
  virtual void run_ranks(Workers& workers, double timeout_seconds, Device& device,
                         const std::function<void(Communicator&)>& body) = 0;
  void run_ranks(Workers& workers, double timeout_seconds, const std::function<void(Communicator&)>& body) {
    run_ranks(workers, timeout_seconds, Device::cpu(), body);
  }
};

// Error(usage) when a launcher started this process but it cannot join the others.
std::unique_ptr<Processes> join_processes();
// A single process, whatever the environment says.
std::unique_ptr<Processes> one_process();

// Throws Silent on a process other than 0, for an error that every process finds by itself before it joins
// the others. It throws only when process 0 had its time to print: when the launcher sends SIGTERM, which it
// does after process 0 ended, or after a few seconds. No thread may exist yet.
[[noreturn]] void fail_after_process_0(Error::Kind kind);

// Error(usage), once for all processes, when a launcher started several: for commands that run in one.
void require_one_process(std::string_view command);

}  // namespace switchyard

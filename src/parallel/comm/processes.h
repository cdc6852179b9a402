// Processes: the processes of one mpirun, and their ranks. Without mpirun: one process and no MPI.
//
// Every process of a run goes through these stages:
// 1. join_processes(), first of all, before any thread exists.
// 2. Preparations. A process whose preparations fail calls agree(&error) instead of going on.
//    The others learn of the failure in agree(), or in run_ranks(), which calls agree().
//    Process 0 then throws the error and the others throw Silent, so it is printed once.
// 3. run_ranks(). From here on a failure ends the process at once,
//    with one line and a nonzero exit status:
//    other threads and processes may be inside calls that nothing can interrupt.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "core/error.h"
#include "core/workers.h"
#include "parallel/comm/communicator.h"

namespace switchyard {

// The launcher (such as mpirun) that the environment describes. Without one: {false, 0, 1}.
struct Launch {
  bool launched = false;
  int process = 0;
  int processes = 1;  // 0 when the launcher does not say
};
Launch launch_from_environment();

// Ends this process with the error's exit status but without a message: process 0 prints the message.
class Silent : public Error {
 public:
  explicit Silent(Kind kind) : Error(kind, "process 0 tells why") {}
};

class Processes {
 public:
  virtual ~Processes() = default;  // shuts down cleanly unless the run failed
  virtual int index() const = 0;
  virtual int count() const = 0;
  // The cores this process may keep busy, given other processes on the same cores; at least 1.
  virtual int cores() const = 0;

  // When process 0 joined the others: the same on all.
  virtual std::chrono::system_clock::time_point start() const = 0;

  // Every process calls it once, with the error that ended its preparations or null. When all are null it
  // returns; else it throws the first failing process's error on process 0 and Silent on the others.
  // Error(runtime) after `timeout_seconds` without an answer.
  virtual void agree(const Error* failure, double timeout_seconds) = 0;
  virtual bool agreed() const = 0;

  // Runs body(communicator of rank r) for the ranks of `workers`. Every process has the same number n of
  // ranks: process p has ranks p·n to p·n + n - 1. Calls agree first unless already done. With one process,
  // behaves as run_local_ranks; with several, each rank is a thread, and the first failure of any rank ends
  // this process (stage 3).
  // `device` is the device of their tensors. Tensors on GPUs of several processes go through NCCL, which
  // requires one rank per process (Error(usage) otherwise).
  virtual void run_ranks(Workers& workers, double timeout_seconds, Device& device,
                         const std::function<void(Communicator&)>& body) = 0;
  void run_ranks(Workers& workers, double timeout_seconds, const std::function<void(Communicator&)>& body) {
    run_ranks(workers, timeout_seconds, Device::cpu(), body);
  }
};

// Error(usage) when a launcher started this process and it cannot join the others.
std::unique_ptr<Processes> join_processes();
// A single process, whatever the environment describes.
std::unique_ptr<Processes> one_process();

// True when the build has MPI.
bool knows_mpi();

// Throws Silent on processes other than 0, for an error that every process finds by itself before joining. It
// waits until process 0 had time to print: until the launcher sends SIGTERM, which it does after process 0
// ended, or for a few seconds. No thread may exist yet.
[[noreturn]] void fail_after_process_0(Error::Kind kind);

// Error(usage), printed once, when a launcher started several processes: for one-process commands.
void require_one_process(std::string_view command);

}  // namespace switchyard

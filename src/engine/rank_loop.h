// RankLoop: keeps ranks alive between calls, and runs one job after another on them.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "core/workers.h"
#include "engine/session.h"

namespace switchyard {

class RankLoop {
 public:
  using Job = std::function<void(Context& context)>;

  // Starts the mesh's ranks of this process; the arguments must outlive
  // the loop. Every rank runs `last` before it ends, whatever failed.
  RankLoop(const Config& config, const Mesh& mesh, Processes& processes, Job last);
  ~RankLoop();
  RankLoop(const RankLoop&) = delete;
  RankLoop& operator=(const RankLoop&) = delete;

  // Runs the job on every rank of this process and returns when all are done. May be called from any thread;
  // calls run one after the other. Rethrows a rank's exception. A single rank then continues. Of several
  // ranks, others may have been waiting for the failed one: they end, and this and all further calls throw
  // that error. Ranks of several processes need the same jobs in the same order in each process, and there a
  // rank's error ends all processes, as in Processes::run_ranks.
  void run(const Job& job);

 private:
  void serve(Context& context);
  void carry_out(Context& context, const Job& job);

  const bool alone_;  // the mesh has one rank
  const int ranks_;   // ranks in this process
  const Job last_;
  std::mutex turn_;  // held by the running call

  std::mutex mutex_;  // guards the members below
  RankCondition came_;
  std::condition_variable done_;
  const Job* job_ = nullptr;
  std::int64_t jobs_ = 0;  // number of jobs so far
  int finished_ = 0;       // ranks that have done the last job
  bool over_ = false;      // no more jobs will come
  bool ended_ = false;     // the session has ended
  std::exception_ptr failure_;

  std::thread session_;
};

}  // namespace switchyard

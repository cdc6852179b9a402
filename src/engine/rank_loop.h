// RankLoop: the ranks of a model that stay between calls, and carry out one job after another.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "core/workers.h"
#include "engine/model.h"

namespace switchyard {

class RankLoop {
 public:
  using Job = std::function<void(Context& context)>;

  // Starts the ranks that the model has in this process; the model must live as long. `last` is what each of
  // them does before it ends, whatever failed.
  RankLoop(const ModelOnRanks& model, Job last);
  ~RankLoop();
  RankLoop(const RankLoop&) = delete;
  RankLoop& operator=(const RankLoop&) = delete;

  // Carries out the job on every rank of this process and returns when all have done it. From any thread;
  // calls are carried out one after the other. Throws what a rank threw. A single rank goes on after that; of
  // several the others may have been waiting for the one that failed, so they end, and this call and all
  // further ones throw that error. Ranks of several processes need the same jobs in the same order in each
  // process, and there an error of a rank ends all processes, as in Processes::run_ranks.
  void run(const Job& job);

 private:
  void serve(Context& context);
  void carry_out(Context& context, const Job& job);

  const bool alone_;  // the model has one rank
  const int ranks_;   // of this process
  const Job last_;
  std::mutex turn_;  // held by the call that is carried out

  std::mutex mutex_;  // guards what follows
  RankCondition came_;
  std::condition_variable done_;
  const Job* job_ = nullptr;
  std::int64_t jobs_ = 0;  // that came so far
  int finished_ = 0;       // ranks that have done the last one
  bool over_ = false;      // no job will come
  bool ended_ = false;     // the session has
  std::exception_ptr failure_;

  std::thread session_;
};

}  // namespace switchyard

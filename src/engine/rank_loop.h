// RankLoop: the ranks of a session that stay between calls, and carry out one job after another.
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

  // Starts the ranks, all in this process. `last` is what each of them does before it ends, whatever failed.
  RankLoop(const Config& config, const Mesh& mesh, Job last);
  ~RankLoop();
  RankLoop(const RankLoop&) = delete;
  RankLoop& operator=(const RankLoop&) = delete;

  // Carries out the job on every rank and returns when all have done it. From any thread; calls are carried
  // out one after the other. Throws what a rank threw. A single rank goes on after that; of several the
  // others may have been waiting for the one that failed, so they end, and this call and all further ones
  // throw that error.
  void run(const Job& job);

 private:
  void serve(Context& context);
  void carry_out(Context& context, const Job& job);

  const int ranks_;
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

#include "engine/rank_loop.h"

#include <utility>

namespace switchyard {

RankLoop::RankLoop(const Config& config, const Mesh& mesh, Processes& processes, Job last)
    : alone_(mesh.size() == 1),
      ranks_(mesh.size() / processes.count()),
      last_(std::move(last)),
      session_([this, &config, &mesh, &processes] {
        std::exception_ptr failure;
        try {
          run_session(config, mesh, processes, [this](Context& context) { serve(context); });
        } catch (...) {
          failure = std::current_exception();
        }
        const std::scoped_lock lock(mutex_);
        ended_ = true;
        if (failure) failure_ = failure;
        done_.notify_all();
      }) {}

RankLoop::~RankLoop() {
  {
    const std::scoped_lock lock(mutex_);
    over_ = true;
    came_.notify_all();
  }
  session_.join();
}

void RankLoop::run(const Job& job) {
  const std::scoped_lock turn(turn_);
  std::unique_lock lock(mutex_);
  if (!ended_) {
    job_ = &job;
    finished_ = 0;
    ++jobs_;
    came_.notify_all();
    done_.wait(lock, [&] { return finished_ == ranks_ || ended_; });
  }
  if (!failure_) return;
  const std::exception_ptr failure = ended_ ? failure_ : std::exchange(failure_, nullptr);
  lock.unlock();
  std::rethrow_exception(failure);
}

// Runs a rank's jobs, one after another, from its start to its end.
void RankLoop::serve(Context& context) {
  struct AtEnd {
    const Job& last;
    Context& context;
    ~AtEnd() { last(context); }
  } const at_end{last_, context};
  for (std::int64_t seen = 0;; ++seen) {
    std::unique_lock lock(mutex_);
    came_.wait(lock, [&] { return jobs_ > seen || over_; });
    if (jobs_ == seen) return;
    const Job& job = *job_;
    lock.unlock();
    carry_out(context, job);
    lock.lock();
    if (++finished_ == ranks_) done_.notify_all();
  }
}

void RankLoop::carry_out(Context& context, const Job& job) {
  try {
    job(context);
  } catch (...) {
    const std::scoped_lock lock(mutex_);
    if (!alone_) {
      over_ = true;  // for the ranks that have done their part
      came_.notify_all();
      throw;
    }
    failure_ = std::current_exception();
  }
}

}  // namespace switchyard

#include "parallel/comm/local_world.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "core/messages.h"
#include "core/running_clock.h"
#include "core/short_lock.h"
#include "parallel/comm/failure.h"
#include "parallel/comm/local.h"

namespace switchyard {
namespace {

using Clock = std::chrono::steady_clock;

// The time that failed ranks wait for the others to end.
constexpr std::chrono::seconds kGrace{4};

std::atomic<bool> ends_process{false};

// Waits until the condition holds, or for `patience` in which this process runs. Returns whether it holds.
template <typename Condition>
bool wait_while_running(RankCondition& condition, std::unique_lock<std::mutex>& lock,
                        RunningClock::duration patience, const Condition& holds) {
  const RunningClock::time_point deadline = RunningClock::now() + patience;
  while (!condition.wait_until(lock, RunningClock::steady(deadline), holds)) {
    if (RunningClock::now() >= deadline) return false;
  }
  return true;
}

// Thrown in ranks whose collective another rank's failure ended; never the failure to report.
class Stopped : public CollectiveError {
 public:
  using CollectiveError::CollectiveError;
};

}  // namespace

void end_process_with_stuck_ranks() {
  ends_process = true;
}

Meeting& LocalWorld::meeting_of(const std::vector<int>& ranks, int channel) {
  const std::scoped_lock lock(mutex_);
  auto& meeting = meetings_[{channel, ranks}];
  if (!meeting) meeting = std::make_unique<Meeting>(ranks);
  return *meeting;
}

double LocalWorld::arrive(Meeting& meeting, int index, const Close& close) {
  auto lock = lock_short(mutex_);
  const int rank = meeting.ranks[static_cast<std::size_t>(index)];
  Slot& slot = meeting.slots[static_cast<std::size_t>(index)];
  if (stopped_by_) throw Stopped(stopped_message(rank, slot));
  slot.arrived = true;
  const std::uint64_t generation = meeting.generation;
  if (enter(meeting)) {
    meeting.error = disagreement(meeting);
    if (close && meeting.error.empty()) {
      meeting.closing = true;
      lock.unlock();
      close();
      lock_short(lock);
      meeting.closing = false;
    }
    open(meeting);
    return 0;
  }

  const Clock::time_point start = Clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  const auto opened = [&] { return meeting.generation != generation; };
  const auto over = [&] { return opened() || (stopped_by_ && !meeting.closing); };
  wait_while_running(meeting.all_here, lock, RunningClock::duration_of(timeout_), over);
  if (meeting.closing) meeting.all_here.wait(lock, opened);
  if (!opened()) {
    if (stopped_by_) throw Stopped(stopped_message(rank, slot));
    stop(rank);
    throw CollectiveError(
        fmt::format("[comm] {} timed out after {} s{}: {} of {} ranks came; missing: rank {}{}",
                    to_string(slot.call), timeout_, to_string(*slot.position), meeting.arrived,
                    meeting.ranks.size(), fmt::join(missing(meeting), ", "), silent(meeting)));
  }
  return elapsed();
}

double LocalWorld::finish(Meeting& meeting) {
  auto lock = lock_short(mutex_);
  const std::uint64_t generation = meeting.generation;
  if (enter(meeting)) {
    open(meeting);
    return 0;
  }
  const Clock::time_point start = Clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  meeting.all_here.wait(lock, [&] { return meeting.generation != generation; });
  return elapsed();
}

void LocalWorld::fail(int rank, std::exception_ptr exception, std::string message) {
  const std::scoped_lock lock(mutex_);
  failures_.push_back({rank, std::move(exception), std::move(message)});
  stop(rank);
}

void LocalWorld::end_rank(bool failed) {
  std::unique_lock lock(mutex_);
  ++ended_;
  all_ended_.notify_all();
  if (!failed || wait_while_running(all_ended_, lock, kGrace, [&] { return ended_ == size_; })) return;
  const Error error = failure();
  const std::string line =
      fmt::format("{} ({} of {} ranks did not come to an end)", error.what(), size_ - ended_, size_);
  if (ends_process) {
    std::fputs(("switchyard: " + line + "\n").c_str(), stderr);
    std::_Exit(error.kind() == Error::Kind::usage ? 2 : 1);
  }
  if (!std::exchange(told_of_stuck_, true)) say_line(line + "; waiting for them");
  all_ended_.wait(lock, [&] { return ended_ == size_; });
}

bool LocalWorld::enter(Meeting& meeting) {
  return ++meeting.arrived == static_cast<int>(meeting.ranks.size());
}

void LocalWorld::open(Meeting& meeting) {
  meeting.arrived = 0;
  for (Slot& slot : meeting.slots) slot.arrived = false;
  ++meeting.generation;
  meeting.all_here.notify_all();
}

void LocalWorld::stop(int rank) {
  if (!stopped_by_) stopped_by_ = rank;
  for (auto& [key, meeting] : meetings_) meeting->all_here.notify_all();
}

std::string LocalWorld::stopped_message(int rank, const Slot& slot) const {
  return fmt::format("[comm] {} on rank {}{} was given up because rank {} failed", to_string(slot.call), rank,
                     to_string(*slot.position), *stopped_by_);
}

std::vector<int> LocalWorld::missing(const Meeting& meeting) {
  std::vector<int> ranks;
  for (std::size_t i = 0; i < meeting.slots.size(); ++i) {
    if (!meeting.slots[i].arrived) ranks.push_back(meeting.ranks[i]);
  }
  return ranks;
}

std::string LocalWorld::silent(const Meeting& here) const {
  std::vector<bool> waits(static_cast<std::size_t>(size_), false);
  for (const auto& [key, meeting] : meetings_) {
    for (std::size_t i = 0; i < meeting->ranks.size(); ++i) {
      if (meeting->slots[i].arrived) waits[static_cast<std::size_t>(meeting->ranks[i])] = true;
    }
  }
  std::vector<int> others;
  for (int rank = 0; rank < size_; ++rank) {
    if (!waits[static_cast<std::size_t>(rank)]) others.push_back(rank);
  }
  if (others.empty() || others == missing(here)) return {};
  return fmt::format("; in no collective: rank {}", fmt::join(others, ", "));
}

// An error all ranks ran into is reported as that of the lowest one, so that the message
// does not depend on timing.
Error LocalWorld::failure() const {
  const auto reported = [](const Failure& failure) {
    try {
      std::rethrow_exception(failure.exception);
    } catch (const Stopped&) {
      return false;
    } catch (...) {
      return true;
    }
  };
  const auto found = std::find_if(failures_.begin(), failures_.end(), reported);
  const Failure& first = found == failures_.end() ? failures_.front() : *found;
  int rank = first.rank;
  for (const Failure& other : failures_) {
    if (other.message == first.message) rank = std::min(rank, other.rank);
  }
  Error::Kind kind = Error::Kind::runtime;
  try {
    std::rethrow_exception(first.exception);
  } catch (const Error& error) {
    kind = error.kind();
  } catch (...) {  // of no kind of ours: a failure at run time
  }
  // A usage error is the same on every rank, so the message names no rank.
  return {kind, kind == Error::Kind::usage ? first.message : fmt::format("rank {}: {}", rank, first.message)};
}

void LocalWorld::rethrow_failure() const {
  if (failures_.empty()) return;
  if (size_ == 1) std::rethrow_exception(failures_.front().exception);
  throw failure();
}

std::string disagreement(const Meeting& meeting) {
  const Slot& first = meeting.slots[0];
  for (std::size_t i = 1; i < meeting.slots.size(); ++i) {
    const Slot& other = meeting.slots[i];
    if (other.call != first.call) {
      return fmt::format(
          "[comm] expected the same collective on all ranks, got {} on rank {}{} and {} on rank {}{}",
          to_string(first.call), meeting.ranks[0], to_string(*first.position), to_string(other.call),
          meeting.ranks[i], to_string(*other.position));
    }
  }
  if (first.call.kind != Collective::ragged_all_to_all) return {};
  for (std::size_t i = 0; i < meeting.slots.size(); ++i) {
    for (std::size_t j = 0; j < meeting.slots.size(); ++j) {
      const std::int64_t sent = meeting.slots[i].operands.send.counts[j];
      const std::int64_t expected = meeting.slots[j].operands.receive.counts[i];
      if (sent == expected) continue;
      return fmt::format("[comm] {}{}: rank {} sends {} rows to rank {}, which expects {}",
                         to_string(first.call), to_string(*first.position), meeting.ranks[i], sent,
                         meeting.ranks[j], expected);
    }
  }
  return {};
}

}  // namespace switchyard

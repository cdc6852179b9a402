// LocalWorld: the meeting point of one process's ranks for collectives, and the handling of their failures
// (internal to local.cc, whose invariants it keeps).
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/tensor.h"
#include "core/workers.h"
#include "parallel/comm/comm_backend.h"
#include "parallel/comm/shared_objects.h"

namespace switchyard {

// One rank's data that the others see during a collective.
struct Slot {
  CollectiveCall call;
  const Position* position = nullptr;
  Operands operands;  // others read `in`, and write this rank's part of a sum to `out`
  bool arrived = false;
  std::vector<std::byte> copies[2];  // of a small input, used alternately; invariant 3
  std::shared_ptr<Buffer> scratch;   // this rank's slice of an all-reduce; invariant 4
};

struct Meeting {
  explicit Meeting(std::vector<int> members) : ranks(std::move(members)), slots(ranks.size()) {}
  const std::vector<int> ranks;
  std::vector<Slot> slots;  // in group order
  int arrived = 0;
  std::atomic<std::uint64_t> generation{0};  // changed with the world's mutex held
  bool closing = false;                      // all have arrived, and the last one does the shared work
  std::string error;                         // of the collective that all joined last, if they disagree
  RankCondition all_here;

  std::mutex making;           // guards the members below
  std::shared_ptr<void> made;  // the result that the first rank made for all
  Collective made_for{};       // the kind of collective that `made` belongs to, and its size
  std::int64_t made_size = 0;
};

class LocalWorld {
 public:
  LocalWorld(int ranks, double timeout_seconds) : size_(ranks), timeout_(std::min(timeout_seconds, 1e8)) {}

  int size() const { return size_; }

  Meeting& meeting_of(const std::vector<int>& ranks, int channel);

  // Wait (1). Throws when the deadline passes or another rank failed. Returns the seconds waited. When all
  // make the same call, the last to arrive runs its `close` before anyone continues; `close` must not throw.
  using Close = std::function<void()>;
  double arrive(Meeting& meeting, int index, const Close& close = {});

  // Wait (2). Always completes; see invariant 1.
  double finish(Meeting& meeting);

  void fail(int rank, std::exception_ptr exception, std::string message);

  // The failure to report, once there is one.
  Error failure() const;
  void rethrow_failure() const;

  // Every rank calls this last. A failed rank waits here for the others; when one of them does not end within
  // the grace period, a program ends, and a library waits on (local.h).
  void end_rank(bool failed);

  SharedObjects& objects() { return objects_; }

 private:
  struct Failure {
    int rank;
    std::exception_ptr exception;
    std::string message;
  };

  // Counts one more arrived rank; true for the last one.
  static bool enter(Meeting& meeting);
  // Lets all arrived ranks continue.
  static void open(Meeting& meeting);

  void stop(int rank);

  std::string stopped_message(int rank, const Slot& slot) const;

  static std::vector<int> missing(const Meeting& meeting);

  // The missing ranks may wait elsewhere; "; in no collective: rank 5" then names the rank that blocks all.
  std::string silent(const Meeting& here) const;

  const int size_;
  const double timeout_;  // seconds
  std::mutex mutex_;      // guards all below, and the slots' `arrived`
  std::map<std::pair<int, std::vector<int>>, std::unique_ptr<Meeting>> meetings_;  // by channel and ranks
  std::optional<int> stopped_by_;
  std::vector<Failure> failures_;
  int ended_ = 0;
  bool told_of_stuck_ = false;
  RankCondition all_ended_;
  SharedObjects objects_;
};

// Empty when all ranks make the same call; else the error message, the same on every rank.
std::string disagreement(const Meeting& meeting);

}  // namespace switchyard

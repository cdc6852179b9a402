// Every collective has the same shape: publish pointers, wait until all have (1), read the others' memory,
// wait until all have read (2). What keeps memory safe when ranks fail:
//
// 1. Only wait (1) can fail. Once all ranks of a group have arrived, each of them goes on to wait (2), and
// leaves it
//    only when all are there; so nobody's buffers go away while another rank reads them. Disagreements found
//    in between are therefore thrown after wait (2), by all ranks alike.
// 2. After a failure (`stopped_`) no wait (1) completes any more: ranks waiting in one leave, later ones do
// not enter.
// 3. The scratch space of all-reduce belongs to the group. It is read after wait (2), and written only after
// wait (1)
//    of the next collective, when all have read it.
#include "dist/comm/local.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>

#include "core/error.h"
#include "core/workers.h"
#include "dist/comm/bytes.h"
#include "dist/comm/failure.h"
#include "dist/comm/reduce.h"
#include "dist/comm/shared_objects.h"

namespace switchyard {
namespace {

using Clock = std::chrono::steady_clock;

// All-reduce works through pieces of at most this many elements a rank, which bounds its scratch space.
constexpr std::int64_t kScratchElements = 1 << 18;

// How long failed ranks wait for the others to end.
constexpr std::chrono::seconds kGrace{4};

// What a rank shows to the others during a collective.
struct Slot {
  CollectiveCall call;
  const Position* position = nullptr;
  const void* in = nullptr;
  RaggedSide ragged{};
  bool arrived = false;
  std::shared_ptr<void> shared;          // what group rank 0 made for a gather that all share
  std::unique_ptr<std::byte[]> scratch;  // this rank's slice of an all-reduce; invariant 3
};

struct Meeting {
  explicit Meeting(std::vector<int> members) : ranks(std::move(members)), slots(ranks.size()) {}
  const std::vector<int> ranks;
  std::vector<Slot> slots;  // in group order
  int arrived = 0;
  std::uint64_t generation = 0;
  std::condition_variable all_here;
};

// Thrown in ranks whose collective another rank's failure ended; never the failure to report.
class Stopped : public CollectiveError {
 public:
  using CollectiveError::CollectiveError;
};

class LocalWorld {
 public:
  LocalWorld(int ranks, double timeout_seconds) : size_(ranks), timeout_(std::min(timeout_seconds, 1e8)) {}

  int size() const { return size_; }

  Meeting& meeting_of(const std::vector<int>& ranks, int channel) {
    const std::scoped_lock lock(mutex_);
    auto& meeting = meetings_[{channel, ranks}];
    if (!meeting) meeting = std::make_unique<Meeting>(ranks);
    return *meeting;
  }

  // Wait (1). Throws when the deadline passes or another rank failed. Returns the seconds waited.
  double arrive(Meeting& meeting, int index) {
    std::unique_lock lock(mutex_);
    const int rank = meeting.ranks[static_cast<std::size_t>(index)];
    Slot& slot = meeting.slots[static_cast<std::size_t>(index)];
    if (stopped_by_) throw Stopped(stopped_message(rank, slot));
    slot.arrived = true;
    if (enter(meeting)) return 0;

    const WaitScope waiting;
    const Clock::time_point start = Clock::now();
    const auto deadline =
        start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout_));
    const std::uint64_t generation = meeting.generation;
    const auto over = [&] { return meeting.generation != generation || stopped_by_.has_value(); };
    const bool in_time = meeting.all_here.wait_until(lock, deadline, over);
    if (meeting.generation == generation) {
      if (in_time) throw Stopped(stopped_message(rank, slot));
      stop(rank);
      throw CollectiveError(
          fmt::format("[comm] {} timed out after {} s{}: {} of {} ranks came; missing: rank {}{}",
                      to_string(slot.call), timeout_, to_string(*slot.position), meeting.arrived,
                      meeting.ranks.size(), fmt::join(missing(meeting), ", "), silent(meeting)));
    }
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  // Wait (2). Always completes; see invariant 1.
  double finish(Meeting& meeting) {
    std::unique_lock lock(mutex_);
    if (enter(meeting)) return 0;
    const WaitScope waiting;
    const Clock::time_point start = Clock::now();
    const std::uint64_t generation = meeting.generation;
    meeting.all_here.wait(lock, [&] { return meeting.generation != generation; });
    return std::chrono::duration<double>(Clock::now() - start).count();
  }

  void fail(int rank, std::exception_ptr exception, std::string message) {
    const std::scoped_lock lock(mutex_);
    failures_.push_back({rank, std::move(exception), std::move(message)});
    stop(rank);
  }

  // The failure to report, once there is one.
  Error failure() const;
  void rethrow_failure() const;

  // Every rank calls this last. A rank that failed waits for the others here; when one of them does not come
  // to an end within the grace, nothing can end it but the end of the process.
  void end_rank(bool failed) {
    std::unique_lock lock(mutex_);
    ++ended_;
    all_ended_.notify_all();
    if (!failed || all_ended_.wait_for(lock, kGrace, [&] { return ended_ == size_; })) return;
    const Error error = failure();
    const std::string line = fmt::format("switchyard: {} ({} of {} ranks did not come to an end)\n",
                                         error.what(), size_ - ended_, size_);
    std::fputs(line.c_str(), stderr);
    std::_Exit(error.kind() == Error::Kind::usage ? 2 : 1);
  }

  SharedObjects& objects() { return objects_; }

 private:
  struct Failure {
    int rank;
    std::exception_ptr exception;
    std::string message;
  };

  // Counts one more rank in; the last one opens the gate and gets true.
  static bool enter(Meeting& meeting) {
    if (++meeting.arrived < static_cast<int>(meeting.ranks.size())) return false;
    meeting.arrived = 0;
    for (Slot& slot : meeting.slots) slot.arrived = false;
    ++meeting.generation;
    meeting.all_here.notify_all();
    return true;
  }

  void stop(int rank) {
    if (!stopped_by_) stopped_by_ = rank;
    for (auto& [key, meeting] : meetings_) meeting->all_here.notify_all();
  }

  std::string stopped_message(int rank, const Slot& slot) const {
    return fmt::format("[comm] {} on rank {}{} was given up because rank {} failed", to_string(slot.call),
                       rank, to_string(*slot.position), *stopped_by_);
  }

  static std::vector<int> missing(const Meeting& meeting) {
    std::vector<int> ranks;
    for (std::size_t i = 0; i < meeting.slots.size(); ++i) {
      if (!meeting.slots[i].arrived) ranks.push_back(meeting.ranks[i]);
    }
    return ranks;
  }

  // The missing ranks may wait for others themselves: "; in no collective: rank 5" then names who keeps all.
  std::string silent(const Meeting& here) const {
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

  const int size_;
  const double timeout_;  // seconds
  std::mutex mutex_;      // guards all below, and the slots' `arrived`
  std::map<std::pair<int, std::vector<int>>, std::unique_ptr<Meeting>> meetings_;  // by channel and ranks
  std::optional<int> stopped_by_;
  std::vector<Failure> failures_;
  int ended_ = 0;
  std::condition_variable all_ended_;
  SharedObjects objects_;
};

// An error all ranks ran into is reported as that of the lowest one, so that the message does not depend on
// timing.
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
  // What the user gave is the same on every rank.
  return {kind, kind == Error::Kind::usage ? first.message : fmt::format("rank {}: {}", rank, first.message)};
}

void LocalWorld::rethrow_failure() const {
  if (failures_.empty()) return;
  if (size_ == 1) std::rethrow_exception(failures_.front().exception);
  throw failure();
}

// Empty when all ranks make the same call, else the error message, the same on every rank.
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
  if (first.call.kind != "ragged_all_to_all") return {};
  for (std::size_t i = 0; i < meeting.slots.size(); ++i) {
    for (std::size_t j = 0; j < meeting.slots.size(); ++j) {
      const std::int64_t sent = meeting.slots[i].ragged.send_counts[j];
      const std::int64_t expected = meeting.slots[j].ragged.recv_counts[i];
      if (sent == expected) continue;
      return fmt::format("[comm] {}{}: rank {} sends {} rows to rank {}, which expects {}",
                         to_string(first.call), to_string(*first.position), meeting.ranks[i], sent,
                         meeting.ranks[j], expected);
    }
  }
  return {};
}

class LocalCommunicator : public Communicator {
 public:
  LocalCommunicator(LocalWorld& world, int rank, int channel)
      : world_(world), rank_(rank), channel_(channel) {}

  int rank() const override { return rank_; }
  int size() const override { return world_.size(); }
  bool shares_memory() const override { return true; }
  std::shared_ptr<void> shared(const std::string& key,
                               const std::function<std::shared_ptr<void>()>& make) override {
    return world_.objects().get(key, make);
  }

 protected:
  std::unique_ptr<Communicator> second_channel() override {
    return std::make_unique<LocalCommunicator>(world_, rank_, channel_ + 1);
  }
  double do_all_gather(const Group& group, const CollectiveCall& call, const void* in, void* out) override {
    return meet(group, call, in, [&](Meeting& meeting) {
      std::int64_t offset = 0;
      for (const Slot& slot : meeting.slots) {
        copy_bytes(at(out, offset), slot.in, call.size);
        offset += call.size;
      }
    });
  }

  double do_all_gather_shared(const Group& group, const CollectiveCall& call, const Make& make,
                              const Place& place, std::shared_ptr<void>& result) override {
    std::shared_ptr<void>& made = slot_of(group).shared;
    if (group.index == 0) made = make();
    const double waited = meet(group, call, nullptr, [&](Meeting& meeting) {
      result = meeting.slots[0].shared;
      place(result.get());
    });
    made.reset();
    return waited;
  }

  double do_reduce_scatter(const Group& group, const CollectiveCall& call, const void* in,
                           void* out) override {
    return meet(group, call, in, [&](Meeting& meeting) {
      const std::int64_t parts = static_cast<std::int64_t>(group.ranks.size()), run = call.size / call.runs;
      for (std::int64_t i = 0; i < call.runs; ++i) {
        const std::int64_t begin = (i * parts + group.index) * run;
        sum_in_order(call.type, inputs_at(meeting, begin * element_bytes(call.type)),
                     at(out, i * run * sum_bytes(call.type)), run);
      }
    });
  }

  double do_all_reduce(const Group& group, const CollectiveCall& call, void* data) override;

  double do_all_to_all(const Group& group, const CollectiveCall& call, const void* in, void* out) override {
    return meet(group, call, in, [&](Meeting& meeting) {
      std::int64_t offset = 0;
      for (const Slot& slot : meeting.slots) {
        copy_bytes(at(out, offset), at(slot.in, group.index * call.size), call.size);
        offset += call.size;
      }
    });
  }

  double do_ragged_all_to_all(const Group& group, const CollectiveCall& call,
                              const RaggedSide& side) override {
    slot_of(group).ragged = side;
    return meet(group, call, side.in, [&](Meeting& meeting) {
      const auto me = static_cast<std::size_t>(group.index);
      for (std::size_t i = 0; i < meeting.slots.size(); ++i) {
        const RaggedSide& source = meeting.slots[i].ragged;
        copy_bytes(at(side.out, side.recv_offsets[i] * call.size),
                   at(source.in, source.send_offsets[me] * call.size), source.send_counts[me] * call.size);
      }
    });
  }

  double do_broadcast(const Group& group, const CollectiveCall& call, void* data) override {
    return meet(group, call, data, [&](Meeting& meeting) {
      copy_bytes(data, meeting.slots[static_cast<std::size_t>(call.root)].in, call.size);
    });
  }

  double do_barrier(const Group& group, const CollectiveCall& call) override {
    return meet(group, call, nullptr, [](Meeting&) {});
  }

 private:
  Meeting& meeting_of(const Group& group) {
    Meeting*& meeting = meetings_[group.ranks];
    if (!meeting) meeting = &world_.meeting_of(group.ranks, channel_);
    return *meeting;
  }

  Slot& slot_of(const Group& group) { return meeting_of(group).slots[static_cast<std::size_t>(group.index)]; }

  // Publishes `in`, waits for all, checks that they agree, runs work(meeting) on the others' memory, and
  // waits until all have done so. Work must not throw. Returns the seconds waited.
  template <typename Work>
  double meet(const Group& group, const CollectiveCall& call, const void* in, const Work& work) {
    Meeting& meeting = meeting_of(group);
    Slot& slot = meeting.slots[static_cast<std::size_t>(group.index)];
    slot.call = call;
    slot.position = &position();
    slot.in = in;
    double waited = world_.arrive(meeting, group.index);
    const std::string error = disagreement(meeting);
    if (error.empty()) work(meeting);
    waited += world_.finish(meeting);
    if (!error.empty()) throw CollectiveError(error);
    return waited;
  }

  // Every rank's input, `offset` bytes in. A member, so that a call allocates nothing once it has grown.
  std::span<const void* const> inputs_at(const Meeting& meeting, std::int64_t offset) {
    inputs_.resize(meeting.slots.size());
    for (std::size_t i = 0; i < inputs_.size(); ++i) inputs_[i] = at(meeting.slots[i].in, offset);
    return inputs_;
  }

  LocalWorld& world_;
  const int rank_, channel_;
  std::map<std::vector<int>, Meeting*> meetings_;
  std::vector<const void*> inputs_;
};

// Each rank sums one slice of the others' values into its scratch space; then all copy all slices.
double LocalCommunicator::do_all_reduce(const Group& group, const CollectiveCall& call, void* data) {
  const auto parts = static_cast<int>(group.ranks.size());
  const std::int64_t bytes = element_bytes(call.type);
  auto& own_scratch =
      slot_of(group).scratch;  // made before its first use, so no other rank can be reading it
  if (!own_scratch)
    own_scratch = std::make_unique_for_overwrite<std::byte[]>(kScratchElements * sizeof(double));
  std::byte* scratch = own_scratch.get();
  double waited = 0;
  std::int64_t begin = 0;
  do {
    const std::int64_t count = std::min(call.size - begin, kScratchElements * parts);
    void* piece = at(data, begin * bytes);
    waited += meet(group, call, piece, [&](Meeting& meeting) {
      const Slice slice = slice_of(count, parts, group.index);
      sum_in_order(call.type, inputs_at(meeting, slice.begin * bytes), scratch, slice.end - slice.begin);
    });
    const Meeting& meeting = meeting_of(group);
    for (int i = 0; i < parts; ++i) {
      const Slice slice = slice_of(count, parts, i);
      copy_bytes(at(piece, slice.begin * bytes), meeting.slots[static_cast<std::size_t>(i)].scratch.get(),
                 (slice.end - slice.begin) * bytes);
    }
    begin += count;
  } while (begin < call.size);
  return waited;
}

void run_rank(LocalWorld& world, int rank, const std::function<void(Communicator&)>& body) {
  LocalCommunicator communicator(world, rank, 0);
  bool failed = true;
  try {
    body(communicator);
    failed = false;
  } catch (const std::exception& error) {
    world.fail(rank, std::current_exception(), message_with_place(error, communicator.position()));
  } catch (...) {
    world.fail(rank, std::current_exception(), "an exception that is no std::exception");
  }
  world.end_rank(failed);
}

}  // namespace

void run_local_ranks(int ranks, double timeout_seconds, const std::function<void(Communicator&)>& body) {
  CHECK(ranks >= 1, "{} ranks", ranks);
  CHECK(timeout_seconds > 0, "timeout of {} s", timeout_seconds);
  LocalWorld world(ranks, timeout_seconds);
  std::vector<std::thread> threads;
  for (int rank = 1; rank < ranks; ++rank) threads.emplace_back([&, rank] { run_rank(world, rank, body); });
  run_rank(world, 0, body);
  for (std::thread& thread : threads) thread.join();
  world.rethrow_failure();
}

}  // namespace switchyard

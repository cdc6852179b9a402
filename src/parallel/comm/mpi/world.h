// World: one process's view of the whole run: the process of each rank,
// the waits between ranks, and the failures.
//
// When something goes wrong, the run ends in every process with one line and a nonzero exit status:
// 1. A rank that throws, or finds that others make another call, tells all processes (News::fault) and ends
//    its own. A process that hears of it while it waits, or sees that process end, ends itself.
// 2. The watches of a machine see a process die and tell the other processes.
// 3. A rank that waited until the deadline tells all (News::stalled). Then every waiting rank says which
//    ranks it misses. A second later each knows the ranks that are missed without being in a collective: the
//    fault lies there, because a rank that waits for waiting ranks is not to blame. When the late ranks
//    continue within that second (News::resumed), the run goes on.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/running_clock.h"
#include "parallel/comm/communicator.h"
#include "parallel/comm/mpi/watch.h"
#include "parallel/comm/mpi/wire.h"

namespace switchyard {

class World {
 public:
  explicit World(Wire& wire);

  // Called each time ranks are started, before they use the world. Ranks of process p: p·per_process onwards.
  void start_ranks(int per_process, double timeout_seconds);
  int ranks() const { return per_process_ * wire_.processes(); }
  int ranks_a_process() const { return per_process_; }
  int process_of(int rank) const { return rank / per_process_; }
  // The thread that calls collectives: a rank's own (channel 0) or its progress thread (channel 1).
  struct Caller {
    int rank = -1;  // -1: no particular rank
    int channel = 0;
    auto operator<=>(const Caller&) const = default;
  };
  // Registers a caller's position, which must live until the process ends or leave() is called.
  void enter(Caller caller, const Position& position);
  void leave(Caller caller);

  // A collective from the view of the waiting caller.
  struct Waiting {
    Caller caller;
    const CollectiveCall& call;
    std::size_t members;  // of the group
    bool arriving;  // true: waits for arrivals; false: waits for bytes, and any progress counts
  };
  // Returns when all transfers are done; ends the process on a fault. Error(runtime) when MPI fails.
  void wait(const Waiting& waiting, Transfers& transfers);
  // Waits likewise for something other than MPI transfers: until done(progress) returns true; passes on what
  // done() throws. missing() returns the ranks, ascending, that the caller may be waiting for.
  using Missing = std::function<std::vector<int>()>;
  void wait(const Waiting& waiting, const std::function<bool(bool& progress)>& done, const Missing& missing);
  // Waits for transfers before ranks exist: `what` names the thing waited for.
  void wait_before_ranks(const std::string& what, double timeout_seconds, Transfers& transfers);

  // Ends all processes of the run because of an error of this rank.
  [[noreturn]] void fail(int rank, Error::Kind kind, const std::string& message);
  // The run is over: other processes may end, and this one must end within the time.
  void finish(double timeout_seconds) { watch_.finish(timeout_seconds); }

 private:
  using Clock = RunningClock;
  struct Seat {
    const Position* position = nullptr;
    const CollectiveCall* call = nullptr;
  };

  void hear();
  void check_stall(const Waiting& waiting, const Missing& missing, bool late);
  void note_stall(Caller caller, std::vector<int> missing, bool late);
  void note_resumption(Caller caller);
  std::string stall_message(const Waiting& waiting, bool late) const;
  std::string name(int rank) const;
  std::string name_of_process(int process) const;
  void tell_all(const News& news);
  void died(int process);
  [[noreturn]] void give_up(Caller caller);
  [[noreturn]] void end(int status, const std::string& line);
  void see_others_end();

  Wire& wire_;
  std::atomic<int> per_process_{0};  // 0 before start_ranks
  bool own_cores_ = false;           // every rank on these cores has its own core
  double timeout_ = 0;
  std::mutex mutex_;              // guards all members below
  std::map<Caller, Seat> seats_;  // of this process's callers
  std::optional<News> fault_;
  std::map<Caller, std::vector<int>> stalled_;      // waiting caller -> the ranks it misses
  std::set<Caller> late_;                           // callers past the deadline
  std::optional<Clock::time_point> stalled_since_;  // set while any caller is stalled
  std::atomic<bool> ending_{false};
  const std::thread::id maker_ = std::this_thread::get_id();
  std::vector<std::atomic<bool>> told_;  // per process: it has printed its line
  std::vector<std::atomic<bool>>
      dead_;     // per process: MPI must not contact it, as MPI might abort
  Watch watch_;  // last: its thread uses all members above
};

}  // namespace switchyard

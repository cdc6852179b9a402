// World: what one process knows of the whole run: which rank is where, who waits for whom, and what went
// wrong.
//
// How a run ends when something goes wrong, in every process with one line and a nonzero exit status:
// 1. A rank that throws, or finds that others call something else, tells all processes (News::fault) and ends
//    its own. Those that hear of it while they wait, or see its process end, end theirs.
// 2. A process that dies is seen by the watches of its machine; they tell the others.
// 3. A rank that waited for the deadline says so to all (News::stalled). Now every rank that waits says whom
//    it misses. A second later each of them knows who is missed without being in a collective itself, which
//    is where the fault is: ranks that wait for ranks that wait are not to blame. Where those that were late
//    get on within that second (News::resumed), the run goes on.
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
#include "parallel/comm/communicator.h"
#include "parallel/comm/mpi/watch.h"
#include "parallel/comm/mpi/wire.h"

namespace switchyard {

class World {
 public:
  explicit World(Wire& wire);

  // Called once, before ranks use the world. Ranks of process p: p·per_process onwards.
  void start_ranks(int per_process, double timeout_seconds);
  int ranks() const { return per_process_ * wire_.processes(); }
  int ranks_a_process() const { return per_process_; }
  int process_of(int rank) const { return rank / per_process_; }
  // Who calls collectives: a rank's own thread (channel 0) or its progress thread (channel 1).
  struct Caller {
    int rank = -1;  // -1: nobody in particular
    int channel = 0;
    auto operator<=>(const Caller&) const = default;
  };
  // Where a caller of this process is; must live until the process ends or leave() is called.
  void enter(Caller caller, const Position& position);
  void leave(Caller caller);

  // A collective as the waiting caller sees it.
  struct Waiting {
    Caller caller;
    const CollectiveCall& call;
    std::size_t members;  // of the group
    bool arriving;  // waits for others to come, else for bytes to move: then every bit of progress counts
  };
  // Returns when all transfers are done; ends the process on a fault. Error(runtime) for an error of MPI's.
  void wait(const Waiting& waiting, Transfers& transfers);
  // The same for what is no transfer of MPI's: until done(progress) says so, whatever it throws being thrown.
  // missing() are the ranks, ascending, that may be what it waits for.
  using Missing = std::function<std::vector<int>()>;
  void wait(const Waiting& waiting, const std::function<bool(bool& progress)>& done, const Missing& missing);
  // The same for the time before ranks: `what` is waited for.
  void wait_before_ranks(const std::string& what, double timeout_seconds, Transfers& transfers);

  // Ends all processes of the run because of an error of this rank.
  [[noreturn]] void fail(int rank, Error::Kind kind, const std::string& message);
  // The run is over: other processes may end, and this one will within the time.
  void finish(double timeout_seconds) { watch_.finish(timeout_seconds); }

 private:
  using Clock = std::chrono::steady_clock;
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
  bool own_cores_ = false;           // every rank on these cores has one
  double timeout_ = 0;
  std::mutex mutex_;              // guards all below
  std::map<Caller, Seat> seats_;  // of this process
  std::optional<News> fault_;
  std::map<Caller, std::vector<int>> stalled_;      // who waits -> the ranks it misses
  std::set<Caller> late_;                           // those of them that are past the deadline
  std::optional<Clock::time_point> stalled_since_;  // set while any is
  std::atomic<bool> ending_{false};
  const std::thread::id maker_ = std::this_thread::get_id();
  std::vector<std::atomic<bool>> told_;  // a process; it has printed its line
  std::vector<std::atomic<bool>>
      dead_;     // a process; MPI must not be asked to reach one, it may give up over it
  Watch watch_;  // last: its thread uses all of the above
};

}  // namespace switchyard

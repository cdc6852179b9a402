#include "parallel/comm/mpi/world.h"

#include <fmt/ranges.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <set>
#include <thread>

#include "core/cores.h"
#include "core/workers.h"
#include "parallel/comm/stop_signal.h"

namespace switchyard {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// The time to wait for all ranks to report the ranks they miss.
constexpr milliseconds kStallGrace{1000};
// The time to receive a dead process's last message, which has arrived already.
constexpr milliseconds kLastWords{50};
// Once a process ends with an error, mpirun gives the others a second before it kills them. So whoever has
// printed its line stays this long, or until all others have printed theirs.
constexpr milliseconds kStay{1000};

// How long a rank with a core of its own looks for what it waits for before it sleeps, which takes longer
// than many collectives.
constexpr milliseconds kLook{1};

// Looks for a while, then waits longer and longer: other processes may need this core.
class Backoff {
 public:
  explicit Backoff(std::chrono::nanoseconds look) : look_(look) {}
  void reset() { *this = Backoff(look_); }
  void pause() {
    if (++looked_ <= 64 || std::chrono::steady_clock::now() - began_ < look_) {
      ::sched_yield();
      return;
    }
    const int doubled = std::min(++slept_ / 16, 5);
    std::this_thread::sleep_for(microseconds(20 << doubled));
  }

 private:
  std::chrono::nanoseconds look_;
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  int looked_ = 0, slept_ = 0;
};

std::vector<pid_t> watched(const Wire& wire) {
  const auto& infos = wire.infos();
  const ProcessInfo& own = infos[static_cast<std::size_t>(wire.process())];
  std::vector<pid_t> pids;
  for (const ProcessInfo& info : infos) {
    const bool visible = std::strcmp(info.host, own.host) == 0 && info.pid != own.pid;
    pids.push_back(visible ? static_cast<pid_t>(info.pid) : -1);
  }
  return pids;
}

News fault_news(int process, int rank, int status, const std::string& text) {
  News news;
  news.kind = News::Kind::fault;
  news.process = process;
  news.rank = rank;
  news.status = status;
  std::memcpy(news.text, text.data(), std::min(text.size(), sizeof news.text - 1));
  return news;
}

std::string what_of(const CollectiveCall* call, const Position* position) {
  return (call == nullptr ? "the run" : to_string(*call)) + (position == nullptr ? "" : to_string(*position));
}

}  // namespace

World::World(Wire& wire)
    : wire_(wire),
      told_(static_cast<std::size_t>(wire.processes())),
      dead_(static_cast<std::size_t>(wire.processes())),
      watch_(watched(wire),
             {[this](int process) { died(process); },
              [this] {
                if (wire_.any_thread()) hear();
                const std::scoped_lock lock(mutex_);
                if (fault_) give_up({});
                return note_stop_signal(SIGTERM);
              },
              [this] {
                end(1, fmt::format(
                           "{}: [comm] expected all processes to end at the end of the run, some did not",
                           name_of_process(wire_.process())));
              }}) {}

void World::start_ranks(int per_process, double timeout_seconds) {
  timeout_ = std::min(timeout_seconds, 1e8);
  per_process_ = per_process;
  own_cores_ = per_process * wire_.sharing() <= usable_cores();
}

void World::enter(Caller caller, const Position& position) {
  const std::scoped_lock lock(mutex_);
  seats_[caller].position = &position;
}

void World::leave(Caller caller) {
  const std::scoped_lock lock(mutex_);
  seats_.erase(caller);
}

void World::wait(const Waiting& waiting, Transfers& transfers) {
  wait(
      waiting, [&](bool& progress) { return wire_.test(transfers, progress); },
      [&] { return transfers.pending(); });
}

void World::wait(const Waiting& waiting, const std::function<bool(bool& progress)>& done,
                 const Missing& missing) {
  const WaitScope no_core_needed;
  {
    const std::scoped_lock lock(mutex_);
    seats_[waiting.caller].call = &waiting.call;
  }
  const Clock::duration patience = Clock::duration_of(timeout_);
  Clock::time_point deadline = Clock::now() + patience;
  // A progress thread shares its rank's core.
  Backoff backoff(own_cores_ && waiting.caller.channel == 0 ? kLook : milliseconds(0));
  for (bool progress = false; !done(progress);) {
    hear();
    const Clock::time_point now = Clock::now();
    if (progress && !waiting.arriving) deadline = now + patience;
    check_stall(waiting, missing, now > deadline);
    if (progress)
      backoff.reset();
    else
      backoff.pause();
  }
  const std::scoped_lock lock(mutex_);
  seats_[waiting.caller].call = nullptr;
  if (!stalled_.contains(waiting.caller)) return;
  News news;
  news.kind = News::Kind::resumed;
  news.rank = waiting.caller.rank;
  news.channel = waiting.caller.channel;
  tell_all(news);
  note_resumption(waiting.caller);
}

void World::wait_before_ranks(const std::string& what, double timeout_seconds, Transfers& transfers) {
  const Clock::time_point start = Clock::now();
  for (bool progress = false; !wire_.test(transfers, progress);) {
    hear();
    {
      const std::scoped_lock lock(mutex_);
      if (fault_) give_up({});
    }
    if (Clock::now() - start > std::chrono::duration<double>(timeout_seconds)) {
      const std::vector<int> missing = transfers.pending();
      fail(-1, Error::Kind::runtime,
           fmt::format("[comm] {} timed out after {} s; missing: process {}", what, timeout_seconds,
                       fmt::join(missing, ", ")));
    }
    std::this_thread::sleep_for(milliseconds(1));
  }
}

void World::hear() {
  News news;
  while (wire_.hear(news)) {
    if (news.kind == News::Kind::ending) told_[static_cast<std::size_t>(news.process)] = true;
    const std::scoped_lock lock(mutex_);
    if (news.kind == News::Kind::fault) {
      if (news.rank < 0 && news.text[0] == '\0') dead_[static_cast<std::size_t>(news.process)] = true;
      if (!fault_) fault_ = news;
      continue;
    }
    const Caller caller{news.rank, news.channel};
    if (news.kind == News::Kind::stalled)
      note_stall(caller, {news.ranks, news.ranks + news.missing}, news.late != 0);
    else if (news.kind == News::Kind::resumed)
      note_resumption(caller);
  }
}

void World::note_stall(Caller caller, std::vector<int> missing, bool late) {
  stalled_[caller] = std::move(missing);
  if (late) late_.insert(caller);
  if (late && !stalled_since_) stalled_since_ = Clock::now();
}

void World::note_resumption(Caller caller) {
  stalled_.erase(caller);
  late_.erase(caller);
  if (late_.empty()) stalled_since_.reset();
}

void World::check_stall(const Waiting& waiting, const Missing& missing_ranks, bool late) {
  const std::scoped_lock lock(mutex_);
  if (fault_) give_up(waiting.caller);
  const bool news_to_others = late ? !late_.contains(waiting.caller)
                                   : stalled_since_.has_value() && !stalled_.contains(waiting.caller);
  if (news_to_others) {
    const std::vector<int> missing = missing_ranks();
    News news;
    news.kind = News::Kind::stalled;
    news.rank = waiting.caller.rank;
    news.channel = waiting.caller.channel;
    news.late = late ? 1 : 0;
    news.missing = static_cast<int>(std::min(missing.size(), std::size(news.ranks)));
    std::copy_n(missing.begin(), news.missing, news.ranks);
    tell_all(news);
    note_stall(waiting.caller, missing, late);
  }
  if (!stalled_since_ || Clock::now() - *stalled_since_ < kStallGrace) return;
  stalled_[waiting.caller] = missing_ranks();
  const std::string message = stall_message(waiting, late);
  tell_all(fault_news(wire_.process(), waiting.caller.rank, 1, message));
  end(1, fmt::format("rank {}: {}", waiting.caller.rank, message));
}

std::string World::stall_message(const Waiting& waiting, bool late) const {
  std::set<int> silent;
  for (const auto& [caller, missing] : stalled_) silent.insert(missing.begin(), missing.end());
  for (const auto& [caller, missing] : stalled_) silent.erase(caller.rank);
  std::vector<std::string> missing, others;
  for (const int rank : stalled_.at(waiting.caller)) {
    missing.push_back(name(rank));
    if (silent.erase(rank) == 0 && !silent.empty()) missing.back() += " (which waits itself)";
  }
  for (const int rank : silent) others.push_back(name(rank));
  const auto seat = seats_.find(waiting.caller);
  const std::string place = to_string(*seat->second.position);
  std::string text =
      late ? fmt::format("[comm] {} timed out after {} s{}", to_string(waiting.call), timeout_, place)
           : fmt::format("[comm] {}{} was given up when others timed out", to_string(waiting.call), place);
  if (waiting.arriving)
    text +=
        fmt::format(": {} of {} ranks came; missing: ", waiting.members - missing.size(), waiting.members);
  else
    text += ": all ranks came, but then no bytes moved; missing: ";
  text += fmt::format("{}", fmt::join(missing, ", "));
  if (!others.empty()) text += fmt::format("; in no collective: {}", fmt::join(others, ", "));
  return text;
}

std::string World::name(int rank) const {
  return fmt::format("rank {} (process {})", rank, process_of(rank));
}

std::string World::name_of_process(int process) const {
  const int n = per_process_;
  if (n == 0) return fmt::format("process {}", process);
  if (n == 1) return name(process);
  return fmt::format("ranks {} to {} (process {})", process * n, process * n + n - 1, process);
}

void World::tell_all(const News& news) {
  for (int p = 0; p < wire_.processes(); ++p) {
    if (p != wire_.process() && !dead_[static_cast<std::size_t>(p)]) wire_.tell(p, news);
  }
}

void World::fail(int rank, Error::Kind kind, const std::string& message) {
  const int status = kind == Error::Kind::usage ? 2 : 1;
  tell_all(fault_news(wire_.process(), rank, status, message));
  // A usage error is the same on every process: process 0 prints it, once.
  if (kind == Error::Kind::usage) end(status, wire_.process() == 0 ? message : "");
  end(status, rank < 0 ? fmt::format("process {}: {}", wire_.process(), message)
                       : fmt::format("rank {}: {}", rank, message));
}

void World::died(int process) {
  dead_[static_cast<std::size_t>(process)] = true;
  const bool may_hear = wire_.any_thread();
  const Clock::time_point start = Clock::now();
  while (may_hear && Clock::now() - start < kLastWords) {
    hear();
    {
      const std::scoped_lock lock(mutex_);
      if (fault_) give_up({});
    }
    std::this_thread::sleep_for(milliseconds(2));
  }
  const News news = fault_news(process, -1, 1, "");
  if (may_hear) tell_all(news);  // to other machines
  const std::scoped_lock lock(mutex_);
  fault_ = news;
  give_up({});
}

// With the mutex held. Nobody in particular: any caller of this process, one in a collective if there is one.
void World::give_up(Caller caller) {
  const News& news = *fault_;
  const std::string text = news.text;
  if (news.status == 2) end(2, wire_.process() == 0 ? text : "");
  for (const auto& [candidate, seat] : seats_) {
    if (caller.rank < 0 || (seats_.at(caller).call == nullptr && seat.call != nullptr)) caller = candidate;
  }
  const Seat seat = caller.rank < 0 ? Seat{} : seats_.at(caller);
  const std::string who =
      caller.rank < 0 ? fmt::format("process {}", wire_.process()) : fmt::format("rank {}", caller.rank);
  const std::string culprit = news.rank < 0 ? name_of_process(news.process) : name(news.rank);
  const std::string reason =
      text.empty() ? fmt::format("{} died", culprit) : fmt::format("{} failed: {}", culprit, text);
  end(1,
      fmt::format("{}: [comm] {} was given up because {}", who, what_of(seat.call, seat.position), reason));
}

// Without the mutex, which this thread may hold already.
void World::see_others_end() {
  News ending;
  ending.kind = News::Kind::ending;
  ending.process = wire_.process();
  tell_all(ending);
  const auto gone = [&] {
    int count = 1;
    for (std::size_t p = 0; p < told_.size(); ++p) count += told_[p] || dead_[p] ? 1 : 0;
    return count >= wire_.processes();
  };
  const Clock::time_point start = Clock::now();
  while ((!wire_.push() || !gone()) && Clock::now() - start < kStay) {
    for (News news; wire_.hear(news);) {
      if (news.kind == News::Kind::ending) told_[static_cast<std::size_t>(news.process)] = true;
    }
    std::this_thread::sleep_for(milliseconds(1));
  }
}

// One line only, whichever thread comes first; the others stay here.
void World::end(int status, const std::string& line) {
  while (ending_.exchange(true)) std::this_thread::sleep_for(std::chrono::hours(1));
  std::fflush(stdout);
  std::string message = "switchyard: " + line;
  std::replace(message.begin(), message.end(), '\n', ' ');
  message += '\n';
  if (!line.empty() && ::write(STDERR_FILENO, message.data(), message.size()) < 0) status = 1;
  // If MPI serves one thread only, no other thread may call it, not even to say goodbye.
  if (wire_.any_thread() || std::this_thread::get_id() == maker_) see_others_end();
  ::_exit(status);
}

}  // namespace switchyard

#include "parallel/comm/mpi/watch.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <utility>

#include "core/error.h"

namespace switchyard {
namespace {

// A launcher that sees a process die sends SIGTERM to the others;
// the death itself may become visible slightly later.
constexpr std::chrono::milliseconds kAfterSigterm{200};
constexpr int kTickMilliseconds = 250;

sigset_t sigterm_set() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  return set;
}

}  // namespace

void leave_sigterm_to_watch() {
  const sigset_t set = sigterm_set();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

Watch::Watch(const std::vector<pid_t>& pids, Events events) : events_(std::move(events)) {
  for (std::size_t p = 0; p < pids.size(); ++p) {
    if (pids[p] < 0) continue;
    const auto handle = static_cast<int>(::syscall(SYS_pidfd_open, pids[p], 0));
    if (handle < 0) continue;
    processes_.push_back(static_cast<int>(p));
    handles_.push_back(handle);
  }
  const sigset_t set = sigterm_set();
  signals_ = ::signalfd(-1, &set, SFD_CLOEXEC);
  stop_ = ::eventfd(0, EFD_CLOEXEC);
  CHECK(signals_ >= 0 && stop_ >= 0, "signalfd {}, eventfd {}", signals_, stop_);
  thread_ = std::thread([this] { run(); });
}

Watch::~Watch() {
  const std::uint64_t one = 1;
  const bool told = ::write(stop_, &one, sizeof one) == sizeof one;
  CHECK(told, "cannot stop the watch");
  thread_.join();
  for (const int handle : handles_) ::close(handle);
  ::close(signals_);
  ::close(stop_);
}

void Watch::finish(double seconds) {
  finish_by_ = (Clock::now() + Clock::duration_of(seconds)).time_since_epoch().count();
}

void Watch::run() {
  for (;;) {
    std::vector<pollfd> files{{stop_, POLLIN, 0}, {signals_, POLLIN, 0}};
    for (const int handle : handles_) files.push_back({handle, POLLIN, 0});
    const bool terminating = terminate_at_ != Clock::time_point::max();
    ::poll(files.data(), files.size(), terminating ? 10 : kTickMilliseconds);
    if (files[0].revents != 0) return;
    for (std::size_t i = files.size(); i-- > 2;) {
      if (files[i].revents != 0) handle_death(i - 2);
    }
    if (files[1].revents != 0) {
      signalfd_siginfo info{};
      if (::read(signals_, &info, sizeof info) == sizeof info && !terminating)
        terminate_at_ = Clock::now() + kAfterSigterm;
    }
    if (Clock::now() >= terminate_at_) end_by_sigterm();
    const Clock::rep finish_by = finish_by_;
    if (finish_by != 0 && Clock::now().time_since_epoch().count() > finish_by) events_.overdue();
  }
}

void Watch::handle_death(std::size_t index) {
  const int process = processes_[index];
  ::close(handles_[index]);
  processes_.erase(processes_.begin() + static_cast<std::ptrdiff_t>(index));
  handles_.erase(handles_.begin() + static_cast<std::ptrdiff_t>(index));
  if (finish_by_ == 0) events_.died(process);
}

void Watch::end_by_sigterm() {
  terminate_at_ = Clock::time_point::max();
  if (events_.terminated()) return;
  ::signal(SIGTERM, SIG_DFL);
  const sigset_t set = sigterm_set();
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  ::raise(SIGTERM);
}

}  // namespace switchyard

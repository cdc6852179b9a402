#include "parallel/comm/stop_signal.h"

#include <signal.h>
#include <string.h>

#include <atomic>

#include "core/error.h"

namespace switchyard {
namespace {

std::atomic<bool> catching{false};
std::atomic<int> noted{0};
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler uses it");

void handle(int signal) {
  if (note_stop_signal(signal)) return;
  ::signal(signal, SIG_DFL);
  ::raise(signal);  // comes when this handler returns
}

}  // namespace

void catch_stop_signals() {
  struct sigaction action {};
  action.sa_handler = handle;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  catching = true;
  for (const int signal : kStopSignals) {
    struct sigaction before {};
    CHECK(::sigaction(signal, nullptr, &before) == 0, "signal {}", signal);
    if (before.sa_handler == SIG_IGN) continue;
    CHECK(::sigaction(signal, &action, nullptr) == 0, "signal {}", signal);
  }
}

std::string name_of_signal(int signal) {
  return std::string("SIG") + ::sigabbrev_np(signal);
}

bool note_stop_signal(int signal) {
  int none = 0;
  return catching && noted.compare_exchange_strong(none, signal);
}

int stop_signal() {
  return noted;
}

}  // namespace switchyard

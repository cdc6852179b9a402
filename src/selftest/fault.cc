#include "selftest/fault.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "kernels/cpu/amx_emulation.h"
#include "kernels/registry/isa.h"

namespace switchyard::selftest {
namespace {

char running_text[501];  // read by the handler, so no string

void say(const char* text) {
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text, std::strlen(text));
}

// Uses only functions that a signal handler may call.
void report_fault(int signal, siginfo_t*, void* context) {
  if (signal == SIGILL && amx_is_emulated() && cpu::emulate_amx_at(context)) return;
  say("switchyard: [selftest] ");
  say(running_text);
  say(signal == SIGILL ? ": an instruction that this machine does not have\n"
                       : ": touched memory outside its arrays\n");
  ::_exit(3);
}

}  // namespace

FaultReport::FaultReport() {
  struct sigaction action = {};
  action.sa_sigaction = report_fault;
  action.sa_flags = SA_SIGINFO;
  for (std::size_t i = 0; i < std::size(kSignals); ++i) ::sigaction(kSignals[i], &action, &previous_[i]);
}

FaultReport::~FaultReport() {
  for (std::size_t i = 0; i < std::size(kSignals); ++i) ::sigaction(kSignals[i], &previous_[i], nullptr);
}

void FaultReport::running(std::string_view what) {
  const std::size_t length = std::min(what.size(), sizeof(running_text) - 1);
  std::copy_n(what.data(), length, running_text);
  running_text[length] = '\0';
}

}  // namespace switchyard::selftest

#include "core/fence.h"

#include <unistd.h>

#include <csignal>
#include <utility>

namespace switchyard {
namespace {

thread_local std::string_view op_of_thread;

void write_text(std::string_view text) {
  [[maybe_unused]] const auto written = write(STDERR_FILENO, text.data(), text.size());
}

// Calls only functions that a signal handler may call.
void announce(int signal) {
  write_text(
      "switchyard: [fence] memory was touched that only kernels, copies and collectives may touch; running "
      "op: ");
  write_text(op_of_thread.empty() ? "none (or in a kernel)" : op_of_thread);
  write_text("\n");
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

}  // namespace

std::string_view exchange_running_op(std::string_view op) {
  return std::exchange(op_of_thread, op);
}

std::string_view running_op() {
  return op_of_thread;
}

void name_the_op_of_faults() {
  // With AMX's emulation another handler stands behind SIGILL, not behind these.
  std::signal(SIGSEGV, announce);
  std::signal(SIGBUS, announce);
}

}  // namespace switchyard

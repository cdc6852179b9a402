// Prints a line, not just a signal, when a kernel faults: it accessed foreign memory, or ran an instruction
// that the machine does not have.
#pragma once

#include <signal.h>

#include <string_view>

namespace switchyard::selftest {

// While an object exists, SIGSEGV, SIGBUS and SIGILL in any thread end the process with status 3 and a line
// on stderr that names the running kernel. Only one object may exist.
class FaultReport {
 public:
  FaultReport();
  ~FaultReport();
  FaultReport(const FaultReport&) = delete;
  FaultReport& operator=(const FaultReport&) = delete;

  void running(std::string_view what);  // cut after 500 bytes

 private:
  static constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGILL};
  struct sigaction previous_[3];
};

}  // namespace switchyard::selftest

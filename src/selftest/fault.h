// A line instead of a bare signal where a kernel faults: on memory that is not its own, or on an instruction
// that the machine does not have.
#pragma once

#include <signal.h>

#include <string_view>

namespace switchyard::selftest {

// While it lives, SIGSEGV, SIGBUS and SIGILL of any thread end the process with status 3 and a line on stderr
// that says what was running. One at a time.
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

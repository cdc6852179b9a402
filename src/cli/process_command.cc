#include "cli/process_command.h"

#include "cli/report_error.h"
#include "core/error.h"

namespace switchyard {
namespace {

// Before the config is known: how long processes wait for each other to report an error.
constexpr double kAgreeSeconds = 300;

// The exit status for what ended this process, once the others know of it and it is
// printed where it should be.
int fail(const std::exception& error, Processes& processes) {
  if (!processes.agreed()) {
    const auto* own = dynamic_cast<const Error*>(&error);
    const Error told = own != nullptr ? *own : Error(Error::Kind::runtime, error.what());
    try {
      processes.agree(&told, kAgreeSeconds);
    } catch (const std::exception&) {  // the error of the first process that failed
      return report_error();
    }
  }
  return report_error();
}

}  // namespace

int run_in_processes(const std::function<int(Processes&)>& body) {
  const std::unique_ptr<Processes> processes = join_processes();
  try {
    return body(*processes);
  } catch (const std::exception& error) {
    // Reported while the other processes are still there: where one ends with an
    // error, mpirun ends the others.
    return fail(error, *processes);
  }
}

}  // namespace switchyard

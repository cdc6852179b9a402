#include "cli/doctor_command.h"

#include "cli/help_page.h"
#include "cli/report.h"
#include "commands/commands.h"

namespace switchyard {
namespace {

constexpr const char* kDoctorHelp =
    R"(switchyard doctor [--quick] [--require NAME,NAME] [--json FILE]

Says what this machine and this build have: the processor and its instructions, cores, memory, GPUs, MPI and what else is
optional; and of what is missing, how to get it.

  --quick         does not measure the processor and its memory, which takes some seconds
  --require NAMES exit status 1 unless all of these are there: cpu (AVX2 or more), gpu, nccl, mpi, grammars, tls, libedit
  --json FILE     also writes {"version", "parts": [{"name", "state", "what", "advice"}]}; a state is ok, missing, or
                  unknown where the system does not tell

Exit status: 0, 1 for what was required, 2 wrong command line.

Examples:
  switchyard doctor
  switchyard doctor --quick --require mpi --json doctor.json
)";

}  // namespace

int doctor_command(std::span<const std::string> args) {
  const Options options = doctor_options(args);
  if (options.help) {
    print_help_page(kDoctorHelp);
    return 0;
  }
  return print_report(run_doctor(options, print_warning));
}

}  // namespace switchyard

#include "cli/program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "cli/bench_command.h"
#include "cli/chat_command.h"
#include "cli/completion_command.h"
#include "cli/config_command.h"
#include "cli/convert_command.h"
#include "cli/data_command.h"
#include "cli/doctor_command.h"
#include "cli/eval_command.h"
#include "cli/explain_command.h"
#include "cli/generate_command.h"
#include "cli/inspect_command.h"
#include "cli/plan_command.h"
#include "cli/report_error.h"
#include "cli/selftest_command.h"
#include "cli/serve_command.h"
#include "cli/tokenize_command.h"
#include "cli/train_command.h"
#include "cli/verify_command.h"
#include "config/declaration.h"
#include "core/error.h"
#include "kernels/machine/machine.h"
#include "parallel/comm/local.h"
#include "parallel/comm/processes.h"

namespace switchyard {
namespace {

struct Command {
  std::string help;
  std::function<int(std::span<const std::string>)> run;
  bool in_processes = false;  // also in several that mpirun started
};

const std::map<std::string, Command>& commands() {
  static const std::map<std::string, Command> table{
      {"train", {"train a model", train_command, true}},
      {"generate", {"text from a model", generate_command, true}},
      {"serve", {"texts from a model over HTTP", serve_command, true}},
      {"chat", {"a conversation with a model at a terminal", chat_command, true}},
      {"eval",
       {"how well a model predicts a text, and how far it is from other weights", eval_command, true}},
      {"verify", {"compare with reference numbers", verify_command}},
      {"plan", {"memory, collectives and time of a step, without running it", plan_command}},
      {"explain", {"how parameters and activations are laid out, and why", explain_command}},
      {"convert", {"weights of a Hugging Face folder as a checkpoint, and back", convert_command}},
      {"inspect", {"what is in weights, checkpoints and runs, and how two differ", inspect_command}},
      {"bench", {"how close this machine's kernels come to its peaks", bench_command}},
      {"selftest", {"every kernel on this machine against its reference", selftest_command}},
      {"doctor", {"what this machine and this build have, and what they lack", doctor_command}},
      {"data", {"text to tokens on disk, and what is in them", data_command}},
      {"tokenize", {"text to ids and back", tokenize_command}},
      {"completion", {"what makes a shell complete commands, options, keys and values", completion_command}},
      {"config", {"show the settings a command line gives, or the table of keys (--list)", config_command}},
  };
  return table;
}

[[noreturn]] void fail_unknown(const std::string& given) {
  std::vector<std::string> names;
  std::string list;
  for (const auto& [name, entry] : commands()) {
    names.push_back(name);
    list += (list.empty() ? "" : ", ") + name;
  }
  fail_usage("[command line] expected a command, one of {}, got {}{} (switchyard --help)", list,
             given.empty() ? "none" : given, given.empty() ? "" : nearest_hint(given, names));
}

void print_commands() {
  fmt::print(
      "Switchyard trains Mixture-of-Experts transformers. switchyard COMMAND --help shows a page per "
      "command.\n"
      "Usage: switchyard [OPTIONS] SUBCOMMAND\n\nOptions:\n"
      "  -h,--help                   Print this help message and exit\n"
      "  --version                   Display program version information and exit\n\nSubcommands:\n");
  for (const auto& [name, entry] : commands()) fmt::print("  {:<27} {}\n", name, entry.help);
}

// A command reads the arguments behind its name by itself (cli/options.h).
int run(std::span<const std::string> arguments) {
  const std::string first = arguments.empty() ? "" : arguments[0];
  if (first == "--help" || first == "-h") {
    print_commands();
    return 0;
  }
  if (first == "--version") {
    fmt::print("{}\n", SWITCHYARD_VERSION);
    return 0;
  }
  const auto chosen = commands().find(first);
  if (chosen == commands().end()) fail_unknown(first);
  if (first != "bench" && !has_true_numbers())
    fail_usage("[command line] this build has AMX's costs without its numbers: it runs bench alone");
  if (!chosen->second.in_processes) require_one_process(first);
  return chosen->second.run(arguments.subspan(1));
}

// Files that the program opens shall not become the descriptors of streams that whoever started it had
// closed: what is printed would be written into them.
void open_closed_streams() {
  for (const int descriptor : {0, 1, 2}) {
    if (::fcntl(descriptor, F_GETFD) >= 0) continue;
    const int opened = ::open("/dev/null", descriptor == 0 ? O_RDONLY : O_WRONLY);
    if (opened != descriptor && opened >= 0) {
      ::dup2(opened, descriptor);
      ::close(opened);
    }
  }
}

}  // namespace

int run_program(int argc, char** argv) {
  open_closed_streams();
  end_process_with_stuck_ranks();
  ::signal(SIGXFSZ, SIG_IGN);  // beyond a limit of file size a write fails with a reason, as on a full disk
  try {
    const std::vector<std::string> arguments(argv + (argc > 0 ? 1 : 0), argv + argc);
    const int status = run(arguments);
    // Nobody shall believe a table or a file that a full disk or a closed pipe cut off.
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
      fail_runtime("[output] standard output cannot be written");
    return status;
  } catch (const std::exception&) {
    return report_error();
  }
}

}  // namespace switchyard

#include "cli/explain_command.h"

#include "cli/help_page.h"
#include "cli/report.h"
#include "commands/commands.h"

namespace switchyard {
namespace {

constexpr const char* kExplainHelp =
    R"(switchyard explain [--filter TEXT] [--json FILE] [CONFIG.yml] [key=value ...]

Shows how every parameter and every constrained activation is laid out over the mesh: logical dims, the mesh axes
that split each (or "replicated"), the rule of logical_axis_rules that says so or why none does, the shape on one rank,
and the collectives that this costs. Axes of size 1 are left out. Layers that are alike are shown once. Nothing is
computed.

  --filter TEXT  only tensors whose name contains TEXT, such as moe or layers.3.attention
  --json FILE    also write everything to FILE, layer by layer

Example:
  switchyard explain model_name=mixtral-8x7b ranks=8 ici_fsdp_parallelism=2 ici_expert_parallelism=4 --filter moe
)";

}  // namespace

int explain_command(std::span<const std::string> args) {
  const Options options = explain_options(args);
  if (options.help) {
    print_help_page(kExplainHelp);
    return 0;
  }
  return print_report(run_explain(options, print_note));
}

}  // namespace switchyard

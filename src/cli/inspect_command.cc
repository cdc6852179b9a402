#include "cli/inspect_command.h"

#include "cli/help_page.h"
#include "cli/report.h"
#include "commands/commands.h"

namespace switchyard {
namespace {

constexpr const char* kInspectHelp = R"(switchyard inspect [options] PATH [PATH]

One PATH: what is in it. Two: how they differ, tensor by tensor. A path is a safetensors file, a Hugging Face folder
(config.json beside model.safetensors or its shards), a checkpoint, the folder of a run (its newest checkpoint), or, for
one PATH, a GGUF file (statistics are those of the values that its blocks stand for) or an adapter (a folder of PEFT). A Hugging Face folder and a checkpoint are compared parameter by parameter, whatever each calls them.

  --all         a line for each tensor, otherwise tensors whose names differ in numbers only share one; and a line for
                each field of what the model computes
  --statistics  smallest and largest value, mean, standard deviation, and how many are not finite
  --prove       read every byte: prints the XXH3-64 of each tensor; of a checkpoint, compares all with its manifest
  --base PATH   of an adapter: the model that it belongs to, unless the adapter names it and it is there. Prints each
                weight that the adapter changes, with rank, scale, and the norm of the change over the weight's norm
  --json FILE   also write everything to FILE, tensor by tensor

Of a comparison: max abs is the largest difference, max rel that over the largest magnitude of the tensor on either side. NaN
equals NaN.

Exit status: 0 done, and no difference; 1 --prove found something corrupt; 2 wrong command line or broken file; 3 a
difference was found.

Examples:
  switchyard inspect tests/golden/hf/deepseek3-tiny --statistics
  switchyard inspect switchyard_output/run/checkpoints/100 switchyard_output/run/checkpoints/200
)";

}  // namespace

int inspect_command(std::span<const std::string> args) {
  const Options options = inspect_options(args);
  if (options.help) {
    print_help_page(kInspectHelp);
    return 0;
  }
  return print_report(run_inspect(options, print_warning));
}

}  // namespace switchyard

#include "cli/eval_command.h"

#include <optional>

#include "cli/help_page.h"
#include "cli/process_command.h"
#include "cli/progress.h"
#include "cli/report.h"
#include "commands/commands.h"

namespace switchyard {
namespace {

constexpr const char* kEvalHelp =
    R"(switchyard eval FOLDER|FILE.gguf data_path=FILE [--against OTHER] [key=value ...] [options]

How well a model predicts a text: perplexity a token and bits a byte. The model is the folder of a run (its newest
checkpoint), a checkpoint, a Hugging Face folder or a GGUF file; the text is one file of UTF-8, which the model's own
tokenizer makes tokens of. It is read in windows, each a stride further than the one before; every token but the first
is scored once.

  --window W         tokens of a window (512, or max_target_length where that is less)
  --stride S         tokens from one window to the next (half a window): past the first window every token is scored
                     with W - S + 1 to W tokens before it
  --against OTHER    also how far the model is from these weights of the same vocabulary: KL(OTHER || model) of every
                     token, in nats, its mean, median and 99th percentile, and how often both find the same token most
                     probable
  --against-key K=V  a key for OTHER alone; may be given several times
  --json FILE        write the figures to FILE

Keys are those of `generate`:

  add_bos=false                     no begin token before the text, where the tokenizer has one
  per_device_batch_size=4           so many windows a rank at once (2,048 tokens in all without)
  dtype=float32                     compute in another type than the stored one
  ranks=8 ici_expert_parallelism=8  any mesh and strategy, also under mpirun: the same figures, up to rounding

The layout (ranks, mesh, rules, strategy of the experts, device) is that of both models; custom_mesh_and_rule_for_eval
stands for custom_mesh_and_rule. OTHER gets no other key of the
command line but those of --against-key.

Exit status: 0 done, whatever the figures; 1 failed at run time; 2 wrong command line, config or file.

Examples:
  switchyard eval switchyard_output/writer data_path=held_out.txt
  switchyard eval model-Q4_K_M.gguf data_path=held_out.txt --against model --json eval.json
)";

}  // namespace

int eval_command(std::span<const std::string> args) {
  const Options options = eval_options(args);
  if (options.help) {
    print_help_page(kEvalHelp);
    return 0;
  }
  return run_in_processes([&](Processes& processes) {
    std::optional<Progress> bar;
    const CommandProgress progress{load_bar(),
                                   [&](std::int64_t done, std::int64_t all, const std::string& text) {
                                     if (!bar) bar.emplace(all);
                                     bar->update(done, text);
                                     if (done == all) bar.reset();
                                   }};
    const std::optional<Report> report = run_eval(options, processes, print_warning, progress);
    return report ? print_report(*report) : 0;
  });
}

}  // namespace switchyard

#include "cli/plan_command.h"

#include "cli/help_page.h"
#include "cli/report.h"
#include "commands/commands.h"

namespace switchyard {
namespace {

constexpr const char* kPlanHelp =
    R"(switchyard plan [--search | --generate | --mesh "KEYS" ...] [--json FILE] [CONFIG.yml | FOLDER] [key=value ...]
                [topology=NAME]

Runs one training step of rank 0 without data and shows what it takes: memory and where its peak is, collectives
by kind, axis, count and bytes, FLOPs, and the estimated time of a step with what bounds it. For MoE models also
memory and time as the load of the experts gets uneven. The counts are those of a run. FOLDER is a Hugging Face
folder or a GGUF file, with --generate also a checkpoint or a run: the model is planned that it holds.

  topology=NAME  what the ranks run on: a file of configs/topology (cpu, h100, h200, b200), a path, or machine: the
                 processor here, measured in some seconds; default cpu
  --mesh "KEYS"  given several times: compares layouts of one model, a line each. KEYS are what makes a layout (ranks,
                 axes, custom_mesh_and_rule, strategy) and come before the same keys outside of --mesh
  --search       try every mesh of the given number of ranks and list the fastest that fit
  --generate     instead of a training step what `generate` and `serve` take: weights as weight_format says (stored:
                 as in FOLDER, or as model_name is published: bfloat16, mxfp4 or fp8), the cache
                 of max_target_length tokens for per_device_batch_size texts a rank, the time of their prompts
                 (max_prefill_predict_length tokens) and of a token
  --json FILE    also write everything to FILE

Memory is that of a rank alone: ranks of one process, which share weights, take less together. With mpirun there is one
more all-gather, after the optimizer. It is counted where the topology is one of GPUs, each of which is a process, or
sets ranks_per_node to the ranks of a process.

Examples:
  switchyard plan model_name=deepseek3-671b ranks=4096 ici_fsdp_parallelism=64 ici_expert_parallelism=64 \
      per_device_batch_size=1 max_target_length=4096 topology=h100
  switchyard plan --mesh "ici_expert_parallelism=8" --mesh "ici_expert_parallelism=8 use_ring_of_experts=true" \
      --mesh "custom_mesh_and_rule=pure-fsdp" model_name=mixtral-8x7b ranks=8 per_device_batch_size=1 \
      max_target_length=4096 topology=h100
  switchyard plan --generate model_name=gpt-oss-120b max_target_length=8192 topology=h200
)";

}  // namespace

int plan_command(std::span<const std::string> args) {
  const Options options = plan_options(args);
  if (options.help) {
    print_help_page(kPlanHelp);
    return 0;
  }
  return print_report(run_plan(options, print_note));
}

}  // namespace switchyard

#include "cli/train_command.h"

#include <cstdio>

#include "cli/help_page.h"
#include "cli/process_command.h"
#include "cli/progress.h"
#include "cli/report_error.h"
#include "cli/terminal_text.h"
#include "config/config.h"
#include "engine/command_config.h"
#include "plan/memory_limit.h"
#include "train/run.h"

namespace switchyard {
namespace {

constexpr const char* kTrainHelp = R"(switchyard train [CONFIG.yml | FOLDER | FILE.gguf] key=value ...

Trains a model. Keys are the reference's: a command line of it works here from CONFIG.yml on.
`switchyard config --list` prints all keys.

  switchyard train configs/examples/small-moe.yml
      a small MoE on text found on this machine
  switchyard train configs/base.yml model_name=deepseek3-tiny override_model_config=true \
      base_num_decoder_layers=1 first_num_dense_layers=0 max_target_length=256 \
      per_device_batch_size=1 ranks=4 ici_expert_parallelism=-1 dataset_type=synthetic steps=5
      four ranks in this process, experts split over them
  switchyard train FOLDER data_path=TEXTS steps=100
      goes on with the model of a Hugging Face folder or a GGUF file, which gives the model's keys, its tokenizer and the
      weights to start from
  switchyard train FOLDER data_path=TEXTS steps=100 lora_rank=16
      trains an adapter beside the frozen weights; lora_target=attention,mlp,experts says which weights it changes.
      use_sft=true takes conversations (`switchyard data --help`), use_dpo=true pairs of answers

routing_record=FILE writes the experts of every token, routing_replay=FILE takes those that `generate`, `serve` or a training
wrote for the same texts.

Leaves metrics.jsonl, summary.json, plots/*.svg, tensorboard/ and checkpoints/ in base_output_directory/run_name. With the
same run_name it goes on from the newest checkpoint there, bit for bit. SIGTERM, SIGINT (Ctrl-C), SIGHUP and SIGUSR1 save
and end with status 75.
)";

class TerminalObserver : public RunObserver {
 public:
  explicit TerminalObserver(std::int64_t steps) : progress_(steps) {}
  void line(const std::string& text) override { progress_.line(text); }
  void progress(std::int64_t step, const std::string& text) override { progress_.update(step, text); }
  void finish() { progress_.finish(); }

 private:
  Progress progress_;
};

int train(std::span<const std::string> args, Processes& processes) {
  const bool first_process = processes.index() == 0;
  Config config = config_to_train("train", processes.count(), args);
  config.name_run(processes.start());
  if (first_process) {
    for (const auto& notice : config.notices()) std::printf("%s\n", notice.c_str());
    if (config.get_bool("log_config")) std::printf("%s", config.describe().c_str());
  }
  require_memory_to_train(config, processes);
  TerminalObserver observer(first_process ? std::max<std::int64_t>(0, config.get_int("steps")) : 0);
  const RunReport report = run_training(config, processes, observer, Startup::of_program());
  observer.finish();
  if (!first_process) return report.stopped_by != 0 ? kStoppedBySignal : 0;
  for (const auto& line : report.lines) std::printf("%s\n", line.c_str());
  if (!report.sample.empty())
    std::printf("\nThe model writes:\n%s\n\n", terminal_text(report.sample).c_str());
  const std::string& metrics = config.get_string("metrics_file");
  std::printf("output: %s (%ssummary.json, plots/%s)\n", report.folder.c_str(),
              metrics.empty() ? "metrics.jsonl, " : "",
              config.get_bool("enable_tensorboard") ? ", tensorboard/" : "");
  if (!metrics.empty()) std::printf("metrics: %s\n", metrics.c_str());
  if (report.stopped_by != 0) {
    std::printf("next: run the same command again to resume; %s/plots/loss.svg shows the loss so far\n",
                report.folder.c_str());
    return kStoppedBySignal;
  }
  if (!report.sample.empty() && config.get_bool("enable_checkpointing") &&
      config.get_bool("save_checkpoint_on_completion"))
    std::printf("text from it: switchyard generate %s prompt=\"The \"\n", report.folder.c_str());
  std::printf("next: open %s/plots/loss.svg%s\n", report.folder.c_str(),
              config.get_bool("enable_checkpointing") ? "" : "; enable_checkpointing=true keeps the weights");
  return 0;
}

}  // namespace

int train_command(std::span<const std::string> args) {
  for (const auto& a : args) {
    if (a == "--help" || a == "-h") {
      print_help_page(kTrainHelp);
      return 0;
    }
  }
  return run_in_processes([&](Processes& processes) { return train(args, processes); });
}

}  // namespace switchyard

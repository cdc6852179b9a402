#include "cli/train_command.h"

#include <cstdio>

#include "cli/progress.h"
#include "cli/report_error.h"
#include "config/config.h"
#include "core/error.h"
#include "train/run.h"

namespace switchyard {
namespace {

constexpr const char* kTrainHelp = R"(switchyard train [CONFIG.yml] key=value ...

Trains a model. Keys are the reference's: a command line of it works here from CONFIG.yml on.
`switchyard config --list` prints all keys.

  switchyard train configs/examples/small-moe.yml
      a small MoE on text found on this machine
  switchyard train configs/base.yml model_name=deepseek3-tiny override_model_config=true \
      base_num_decoder_layers=1 first_num_dense_layers=0 max_target_length=256 per_device_batch_size=1 \
      ranks=4 ici_expert_parallelism=-1 dataset_type=synthetic steps=5
      four thread ranks, experts split over them

Leaves metrics.jsonl, summary.json, plots/*.svg, tensorboard/ and checkpoints/ in base_output_directory/run_name. With the
same run_name it goes on from the newest checkpoint there, bit for bit. SIGTERM and SIGINT save and end with status 75.
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

constexpr int kStoppedBySignal = 75;  // saved; the same command goes on

// Before the config is known: how long processes wait for each other's word that something is wrong.
constexpr double kAgreeSeconds = 300;

// Under mpirun every process has at least one rank.
Config read_config(std::span<const std::string> args, const Processes& processes) {
  Config config = Config::from_args(args);
  if (processes.count() == 1 || config.is_set_by_user("ranks")) return config;
  std::vector<std::string> with_ranks(args.begin(), args.end());
  with_ranks.push_back(fmt::format("ranks={}", processes.count()));
  return Config::from_args(with_ranks);
}

// The exit status for what ended this process, once the others know of it and it is printed where it should
// be.
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

int train(std::span<const std::string> args, Processes& processes) {
  const bool first_process = processes.index() == 0;
  const Config config = read_config(args, processes);
  if (first_process) {
    for (const auto& notice : config.notices()) std::printf("%s\n", notice.c_str());
    if (config.get_bool("log_config")) std::printf("%s", config.describe().c_str());
  }
  TerminalObserver observer(first_process ? std::max<std::int64_t>(0, config.get_int("steps")) : 0);
  const RunReport report = run_training(config, processes, observer);
  observer.finish();
  if (!first_process) return report.stopped_by != 0 ? kStoppedBySignal : 0;
  for (const auto& line : report.lines) std::printf("%s\n", line.c_str());
  if (!report.sample.empty()) std::printf("\nThe model writes:\n%s\n\n", report.sample.c_str());
  const std::string& metrics = config.get_string("metrics_file");
  std::printf("output: %s (%ssummary.json, plots/%s)\n", report.folder.c_str(),
              metrics.empty() ? "metrics.jsonl, " : "",
              config.get_bool("enable_tensorboard") ? ", tensorboard/" : "");
  if (!metrics.empty()) std::printf("metrics: %s\n", metrics.c_str());
  if (report.stopped_by != 0) return kStoppedBySignal;
  std::printf(
      "next: open %s/plots/loss.svg, or train on your own text: switchyard train "
      "configs/examples/small-moe.yml data_path=FOLDER\n",
      report.folder.c_str());
  return 0;
}

}  // namespace

int train_command(std::span<const std::string> args) {
  for (const auto& a : args) {
    if (a == "--help" || a == "-h") {
      std::fputs(kTrainHelp, stdout);
      return 0;
    }
  }
  const std::unique_ptr<Processes> processes = join_processes();
  try {
    return train(args, *processes);
  } catch (const std::exception& error) {
    // Reported while the other processes are still there: where one ends with an error, mpirun ends the
    // others.
    return fail(error, *processes);
  }
}

}  // namespace switchyard

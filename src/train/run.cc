#include "train/run.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <ctime>
#include <filesystem>
#include <system_error>
#include <thread>

#include "checkpoint/folder_lock.h"
#include "core/cores.h"
#include "core/json_file.h"
#include "core/offload.h"
#include "data/token_folder.h"
#include "engine/model.h"
#include "engine/output_files.h"
#include "engine/own_adapter.h"
#include "kernels/machine/machine_loops.h"
#include "metrics/atomic_file.h"
#include "models/layout_warnings.h"
#include "routing/routing_keys.h"
#include "texts/generate.h"
#include "tokenizer/tokenizer.h"
#include "train/dry_step.h"
#include "train/recorder.h"
#include "train/resume.h"
#include "train/run_data.h"
#include "train/run_files.h"
#include "train/step_trace.h"
#include "train/unused_patterns.h"
#include "train/weight_digest.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// FLOP/s of products in registers on all cores of all processes: the base of "% of peak". A round that other
// programs disturbed does not count; 0 when all were disturbed, and on a GPU.
double measured_peak(DType dtype, const Processes& processes, const Device& device) {
  constexpr int kSettled = 8, kMost = 100;  // rounds that count without a better one; rounds
  constexpr double kUndisturbed = 0.97;     // of the cores' time that must have been this process's own
  if (device.kind() == DeviceKind::cuda) return 0;
  ThreadPool pool(processes.cores());
  double best = 0;
  for (const ProductLoop& loop : product_loops(dtype)) {
    const std::int64_t steps = 2 * millisecond_of(loop);
    double fastest = 0;
    for (int i = 0, settled = 0; i < kMost && settled < kSettled; ++i) {
      const double begin = now();
      const std::clock_t work = std::clock();
      pool.for_range(pool.threads(), 1, [&](std::int64_t, std::int64_t) { loop.run(steps); });
      const double seconds = now() - begin, own = static_cast<double>(std::clock() - work) / CLOCKS_PER_SEC,
                   rate = loop.flops * static_cast<double>(steps * pool.threads()) / seconds;
      if (own < kUndisturbed * seconds * pool.threads()) continue;
      settled = rate > 1.01 * fastest ? 0 : settled + 1;
      fastest = std::max(fastest, rate);
    }
    best = std::max(best, fastest);
  }
  return best * processes.count();
}

// Says what to try where training from random weights did not lower the loss. Else "".
std::string stalled_line(const History& history, const Config& config) {
  const auto [first, last] = history.loss_of_quarters();
  const bool fell = !(last > first - 0.01 * std::abs(first));  // true also without quarters
  if (fell || !config.get_string("load_parameters_path").empty()) return "";
  return fmt::format(
      "the loss did not fall ({:.3f} in the first quarter of the steps, {:.3f} in the last): try a larger "
      "learning_rate than {:g} (small models take about 1e-3), or more steps",
      first, last, config.get_float("learning_rate"));
}

// Over batches of sizes.eval rows, the last one padded; of the first `limit` batches when that is not 0.
// Under `rules` where there are any, else under those of the training.
// Nats per target; none without targets.
std::optional<double> evaluate_all(Trainer& trainer, Dataset& data, const BatchSizes& sizes,
                                   std::int64_t limit, const std::optional<AxisRules>& rules) {
  auto phase = trainer.timer().scope("evaluation");
  std::optional<Trainer::UnderRules> layout;
  if (rules) layout.emplace(trainer, *rules);
  const std::int64_t rows = sizes.eval, all = (data.rows() + rows - 1) / rows;
  const std::int64_t batches = limit > 0 ? std::min(limit, all) : all;
  double loss = 0, targets = 0;
  for (std::int64_t i = 0; i < batches; ++i) {
    const auto r = trainer.evaluate(BatchRows(data, i * rows, rows, sizes.sequence));
    loss += r.loss_sum;
    targets += r.targets;
  }
  return targets > 0 ? std::optional(loss / targets) : std::nullopt;
}

// Folders on the way to `path` that do not exist, deepest first.
std::vector<fs::path> missing_folders(fs::path path) {
  std::vector<fs::path> missing;
  std::error_code ignored;
  for (; !path.empty() && !fs::exists(path, ignored); path = path.parent_path()) missing.push_back(path);
  return missing;
}

// The run's folder, for this process alone.
struct Outputs {
  std::optional<FolderLock>
      lock;  // first: nothing is written before, and the last file is closed before its end
  std::optional<MetricsWriter> metrics;
  std::shared_ptr<AppendFile> routing;  // where experts are recorded
};

// Nothing of it stays behind when it fails.
void open_outputs(Outputs& outputs, const Config& config, const std::string& folder,
                  const RoutingFiles& routing) {
  const std::vector<fs::path> created = missing_folders(folder + "/plots");
  const std::string metrics = config.get_string("metrics_file");
  try {
    outputs.lock.emplace(folder);
    if (!routing.record.empty()) outputs.routing = std::make_shared<AppendFile>("routing", routing.record);
    std::error_code error;
    fs::create_directories(folder + "/plots", error);
    if (error)
      fail_usage("[train] cannot create {}: {}; set base_output_directory to a folder you may write to",
                 folder, error.message());
    outputs.metrics.emplace(metrics.empty() ? folder + "/metrics.jsonl" : metrics,
                            config.get_bool("enable_tensorboard") ? folder + "/tensorboard" : "");
  } catch (const Error&) {
    if (outputs.routing) outputs.routing->discard();
    if (outputs.lock) outputs.lock->discard();
    std::error_code ignored;
    for (const auto& path : created) fs::remove(path, ignored);  // only while empty
    throw;
  }
}

// The state that all ranks of a run share, made before the first of them starts.
struct Setup {
  ModelOnRanks ranks;
  const TrainConfig training;
  const BatchSizes sizes;
  const CheckpointPlan plan;
  const CheckpointLayout layout;
  const std::string folder;
  std::int64_t steps = 0;
  std::int64_t eval_interval = 0;  // 0: none
  TracedSteps traced = {};
  RunData data = {};
  RoutingFiles routing = {};
  std::shared_ptr<AppendFile> routing_record = {};  // of process 0, where experts are recorded
  ResumePoint resume = {};
  std::vector<ExtraFile> extras = {};
  bool writes_peft = false;  // each checkpoint's folder adapter/ is one of PEFT
  SamplingConfig sampling = {SamplingStrategy::weighted, 0.7};  // of the paragraph at the end
  double peak = 0;
  Startup startup = Startup();      // until the ranks begin
  const RunPlace* place = nullptr;  // null: the run has ranks of its own

  const ModelConfig& model() const { return ranks.model; }
  std::string checkpoints() const { return folder + "/checkpoints"; }
};

// One rank's way through a run.
class RankRun {
 public:
  RankRun(const Setup& setup, Context& context, RunObserver& observer, MetricsWriter* writer)
      : setup_(setup),
        config_(setup.ranks.config),
        context_(context),
        observer_(observer),
        writer_(writer),
        speaks_(context.comm->rank() == 0),
        startup_(setup.startup),
        trainer_(setup.place != nullptr
                     ? setup.place->trainer(context)
                     : own_trainer_.emplace(context, setup.model(), setup.training, parameters())),
        trace_(context, setup.traced, setup.folder + "/trace.json"),
        saves_(trainer_, setup.plan, setup.layout, setup.checkpoints()) {
    startup_.mark("optimizer");
    if (const RoutingFiles& files = setup.routing; files.replay || !files.record.empty())
      trainer_.trace_routing(
          std::make_shared<StepRouting>(setup.model(), files.replay, !files.record.empty()));
    if (!config_.is_none("custom_mesh_and_rule_for_eval"))
      eval_rules_.emplace(config_.axis_rules_for_eval(), *context.mesh);
    if (speaks_) recorder_ = std::make_unique<Recorder>(observer_, *writer_, setup.peak);
  }

  // Returns the signal that stopped it, or 0.
  int run(RunReport& report) {
    start();
    int stop = 0;
    while (done_ < setup_.steps && rows_ < setup_.data.end && stop == 0) {
      step();
      // Without checkpoints a signal ends the process at once.
      if (!setup_.plan.enabled && observer_.takes_signals()) continue;
      stop = saves_.poll(observer_.asked_to_stop());
      if (setup_.plan.enabled && (stop != 0 || done_ % setup_.plan.period == 0)) save();
    }
    if (setup_.place != nullptr) setup_.place->steps(context_) = done_;
    if (setup_.plan.enabled && setup_.plan.on_completion && stop == 0) save();
    saves_.finish();
    finish(report, stop);
    return stop;
  }

 private:
  Parameters parameters() {
    std::vector<std::string> warnings;
    wait_for_device();
    startup_.mark("device");
    Parameters parameters = setup_.ranks.load(context_, nullptr, speaks_ ? &warnings : nullptr);
    wait_for_device();
    startup_.mark("weights");
    for (const auto& w : counted_warnings(warnings)) observer_.line("warning: " + w);
    return parameters;
  }

  // A GPU's context is made by the first work, and its work ends later than it is given to it.
  void wait_for_device() const {
    if (context_.memory.device().kind() == DeviceKind::cuda) gpu::synchronize();
  }

  void start() {
    if (setup_.place != nullptr) {
      done_ = setup_.place->steps(context_);
      rows_ = done_ * setup_.sizes.step;
    }
    if (!setup_.resume.candidates.empty()) {
      std::vector<std::string> skipped;
      const Manifest manifest = [&] {
        auto phase = trainer_.timer().scope("checkpoint");
        return restore_newest(saves_, setup_.resume, &skipped);
      }();
      done_ = manifest.step;
      rows_ = manifest.data.value("rows", done_ * setup_.sizes.step);
      if (const auto bad = manifest.data.find("bad_steps"); bad != manifest.data.end())
        trainer_.bad_steps().restore(bad_step_state(*bad));
      if (setup_.resume.own) saves_.set_last_saved(done_);
      for (const auto& [phase, seconds] : manifest.phases.items()) {
        if (setup_.resume.own && seconds.is_number()) trainer_.timer().add(phase, seconds.get<double>());
      }
      if (speaks_) {
        for (const std::string& line : skipped) observer_.line(line);
        observer_.line(fmt::format(
            "going on after step {} of {}", done_,
            setup_.resume.own ? setup_.checkpoints() : config_.get_string("load_full_state_path")));
        if (setup_.resume.own) recorder_->continue_from(done_);
      }
      startup_.mark("checkpoint");
    }
    if (speaks_ && setup_.routing_record)  // what comes after the checkpoint is recorded again
      setup_.routing_record->keep(setup_.resume.own ? RoutingFile::bytes_before(setup_.routing.record, done_)
                                                    : 0);
    if (speaks_ && config_.get_int("weight_digest_interval") > 0 &&
        !has_replicas(context_, trainer_.parameters()))
      observer_.line("weight_digest_interval: no weight has copies in several processes to compare");
    // Until here a signal ends the process at once: nothing is lost, and what is on disk is whole.
    if (setup_.plan.enabled && observer_.takes_signals()) catch_stop_signals();
    if (setup_.plan.enabled && setup_.plan.on_start && saves_.last_saved() < 0) save();
  }

  void step() {
    const std::int64_t step = done_;
    trace_.before(step);
    const double begin = now();
    context_.memory.account()->reset_peak();
    MemoryAccount* const host = context_.offload ? &context_.offload->account() : nullptr;
    if (host != nullptr) host->reset_peak();
    context_.comm->reset_counts();
    context_.host_reads.reset();
    StepResult result = [&] {
      const TraceSpan whole(trace_.log(), "step", "step", step);
      return trainer_.step(step,
                           BatchRows(*setup_.data.train, rows_, setup_.sizes.step, setup_.sizes.sequence));
    }();
    const double seconds = now() - begin;
    if (!has_stepped_) startup_.mark("first_step");
    has_stepped_ = true;
    cost_ = {context_.comm->counts(), std::max(cost_.peak_bytes, context_.memory.account()->peak()),
             host == nullptr ? 0 : std::max(cost_.host_peak_bytes, host->peak()),
             std::move(result.layer_bytes), context_.host_reads};
    trace_.after(step);
    if (speaks_ && setup_.routing_record) setup_.routing_record->append(result.routing_records);
    const bool last = step + 1 == setup_.steps || rows_ + setup_.sizes.step >= setup_.data.end;
    const bool shown = last || step % config_.get_int("step_line_period") == 0;
    if (speaks_) recorder_->record(step, result, seconds, trainer_, setup_.sizes, shown);
    trainer_.bad_steps().stop_if_hopeless(step, result.loss);
    const std::int64_t digests = config_.get_int("weight_digest_interval");
    if (digests > 0 && (step + 1) % digests == 0) compare_replicas(context_, trainer_.parameters(), step);
    const std::int64_t interval = setup_.eval_interval;
    if (interval > 0 && ((step + 1) % interval == 0 || last)) {
      const std::optional<double> loss =
          evaluate_all(trainer_, *setup_.data.eval, setup_.sizes, config_.get_int("eval_steps"), eval_rules_);
      if (speaks_) recorder_->record_eval(step, loss);
    }
    if (speaks_) recorder_->finish_step(step);
    ++done_;
    rows_ = std::min(rows_ + setup_.sizes.step, setup_.data.end);  // beyond is padding
  }

  // The state after the steps done, unless it is saved already.
  void save() {
    if (saves_.last_saved() == done_) return;
    Checkpointer::Notes notes;
    if (speaks_) {
      notes.manifest = manifest_of(config_, setup_.ranks.mesh, context_.comm->size());
      notes.manifest.data = {{"rows", rows_},
                             {"seed", config_.get_int("data_shuffle_seed")},
                             {"description", setup_.data.train->description()},
                             {"contents", hash_text(setup_.data.train->fingerprint())},
                             {"bad_steps", to_json(trainer_.bad_steps().state())}};
      for (const auto& [phase, seconds] : trainer_.timer().totals()) notes.manifest.phases[phase] = seconds;
      notes.extras = setup_.extras;
      if (setup_.writes_peft)
        notes.last = [](const std::string& path) { write_as_peft(path, path + "/adapter", PeftForm::fused); };
      notes.first = [writer = writer_, record = setup_.routing_record, path = setup_.folder + "/summary.json",
                     text = summary().dump(1) + "\n"] {
        writer->sync();
        if (record) record->sync();
        write_file_atomic(path, text);
      };
    }
    const bool background = saves_.in_background();
    {
      auto phase = trainer_.timer().scope("checkpoint");
      saves_.save(done_, notes);
    }
    if (speaks_ && background && !saves_.in_background())
      observer_.line(
          "warning: memory has no room for a copy of weights and optimizer state: checkpoints are waited "
          "for, as with async_checkpointing=false");
  }

  nlohmann::json summary() {
    nlohmann::json all = run_summary(config_, trainer_, cost_);
    all["startup_seconds"] = to_json(startup_);
    return all;
  }

  void finish(RunReport& report, int stop) {
    std::string sample;
    if (setup_.data.tokenizer && setup_.steps > 0 && stop == 0) {
      auto phase = trainer_.timer().scope("sampling");
      const std::int64_t length = setup_.sizes.sequence;
      const bool own_prompt = config_.is_set_by_user("prompt");
      sample = sample_text(context_, setup_.model(), trainer_.parameters(), *setup_.data.tokenizer,
                           own_prompt ? config_.get_string("prompt") : "The ",
                           std::min<std::int64_t>(400, 2 * length), length, setup_.sampling,
                           setup_.model().init_seed);
    }
    if (!speaks_) return;
    nlohmann::json whole = summary();
    whole["steps"] = done_;
    recorder_->history().add_ends(whole);
    if (trace_.any()) {
      whole["trace"] = setup_.folder + "/trace.json";
      whole["ops"] = trace_.op_times();
    }
    write_file_atomic(setup_.folder + "/summary.json", whole.dump(1) + "\n");
    recorder_->history().write_plots(setup_.folder + "/plots", trainer_.timer().totals());
    add_summary_lines(report, whole, recorder_->history());
    report.sample = sample;
    if (const std::string line = stalled_line(recorder_->history(), config_); !line.empty())
      report.lines.push_back(line);
    if (stop == 0 && done_ < setup_.steps) {
      report.lines.push_back(
          fmt::format("ended after {} of {} steps: the data was gone through num_epoch={} times", done_,
                      setup_.steps, config_.get_int("num_epoch")));
    }
    if (stop != 0) {
      report.lines.push_back(
          fmt::format("stopped by {} after {} of {} steps; run the same command again to resume",
                      name_of_signal(stop), done_, setup_.steps));
    }
  }

  const Setup& setup_;
  const Config& config_;
  Context& context_;
  RunObserver& observer_;
  MetricsWriter* const writer_;  // of rank 0
  const bool speaks_;
  Startup startup_;
  bool has_stepped_ = false;
  std::optional<Trainer> own_trainer_;
  Trainer& trainer_;
  std::optional<AxisRules> eval_rules_;  // none: those of the training
  StepTrace trace_;
  Checkpointer saves_;
  std::unique_ptr<Recorder> recorder_;
  StepCost cost_;
  std::int64_t done_ = 0;  // steps
  std::int64_t rows_ = 0;  // of the data
};

// Weights to be overwritten by those of a checkpoint.
Tensor room_for(const ParameterSpec& spec, const Box& block) {
  return Tensor(spec.dtype, block.shape);
}

Setup make_setup(const Config& config, Processes& processes, Startup& startup, const RunPlace* place,
                 std::vector<std::string>* notes) {
  fault_from_environment();  // unreadable is found before a folder exists
  ModelOnMesh model(config, ModelUse::train);
  const TrainConfig training = train_config(config, model.model, model.mesh.axis_size("stage"));
  const BatchSizes sizes = batch_sizes(config, model.mesh);
  check_layout(config, model.mesh, model.model, sizes);
  for (std::string& line : unused_patterns(config, model.specs)) notes->push_back(std::move(line));
  if (config.get_string("shard_mode") == "explicit") dry_step(model, training, sizes);
  const std::string folder = config.get_string("base_output_directory") + "/" + config.get_string("run_name");
  const std::string metrics = config.get_string("metrics_file");
  require_outputs_apart(
      "train", config,
      {{"metrics_file", metrics},
       {"routing_record", config.get_string("routing_record")},
       {"base_output_directory", folder + "/summary.json", true},
       {"base_output_directory", metrics.empty() ? folder + "/metrics.jsonl" : "", true},
       {"profiler", config.get_string("profiler").empty() ? "" : folder + "/trace.json", true}});
  CheckpointLayout layout(stored_tensors(model.specs, training.update));
  ResumePoint resume = find_resume_point(config, folder + "/checkpoints", layout.tensors(), notes);
  std::optional<Parameters::FillBlock> weights;
  // The base of an adapter is read again: checkpoints hold the adapter alone.
  if (place != nullptr || (!resume.candidates.empty() && model.model.adapter == nullptr)) weights = room_for;
  if (!resume.candidates.empty() && model.model.adapter != nullptr)
    check_base(CheckpointFolder::open(resume.candidates.front().path), config, model.model);
  Setup setup{.ranks = ModelOnRanks(std::move(model), &processes, std::move(weights)),
              .training = training,
              .sizes = sizes,
              .plan = checkpoint_plan(config),
              .layout = std::move(layout),
              .folder = folder,
              .resume = std::move(resume)};
  notes->insert(notes->end(), setup.ranks.notes.begin(), setup.ranks.notes.end());
  if (config.is_set_by_user("decode_sampling_strategy"))
    setup.sampling = sampling_config(config, config.get_int("vocab_size"));
  setup.steps = config.get_int("steps") >= 0 ? config.get_int("steps") : training.schedule.schedule_steps;
  setup.traced = traced_steps(config, setup.steps);
  setup.routing = routing_files(config, setup.model());
  startup.mark("model");
  setup.data = make_run_data(config, setup.model().vocab, setup.sizes);
  if (!setup.data.report.empty()) notes->push_back(setup.data.report);
  note_other_contents(setup.resume, *setup.data.train, notes);
  check_prompt(config, setup.model().vocab, setup.data.tokenizer.get());
  if (setup.plan.enabled && processes.index() == 0)
    setup.extras = carried_extras(config, setup.resume, setup.data, notes);
  if (setup.plan.enabled && setup.model().adapter != nullptr) {
    setup.extras.push_back(adapter_file(config, setup.model(), *setup.model().adapter));
    setup.writes_peft = has_peft_names(config, setup.model());
    if (!setup.writes_peft)
      notes->push_back("checkpoints are no folders of PEFT: the base has no form of Hugging Face");
  }
  startup.mark("data");
  setup.eval_interval = setup.data.eval ? config.get_int("eval_interval") : 0;
  return setup;
}

}  // namespace

RunReport run_training(const Config& config, Processes& processes, RunObserver& observer, Startup startup,
                       const RunPlace* place) {
  const bool first_process = processes.index() == 0;
  std::vector<std::string> notes;
  startup.mark("config");
  Setup setup = make_setup(config, processes, startup, place, &notes);
  setup.place = place;
  const bool may_be_over = setup.resume.own && place == nullptr;  // else the weights go there
  if (may_be_over && setup.resume.step >= setup.steps) {
    processes.agree(nullptr, config.get_float("collective_timeout_seconds"));
    return {.folder = setup.folder,
            .lines = {fmt::format(
                "{} has trained {} steps, steps={} asks for no more; to go on, set steps above {}",
                setup.folder, setup.resume.step, setup.steps, setup.resume.step)}};
  }
  if (may_be_over && setup.resume.rows >= setup.data.end) {
    processes.agree(nullptr, config.get_float("collective_timeout_seconds"));
    return {.folder = setup.folder,
            .lines = {fmt::format("{} has gone through the data num_epoch={} times; to go on, set more",
                                  setup.folder, config.get_int("num_epoch"))}};
  }
  Outputs outputs;  // of process 0
  std::optional<MetricsWriter>& writer = outputs.metrics;
  if (first_process) {
    open_outputs(outputs, config, setup.folder, setup.routing);
    setup.routing_record = outputs.routing;
    if (setup.plan.enabled) {
      std::error_code error;
      fs::create_directories(setup.checkpoints(), error);
      if (!error && ::access(setup.checkpoints().c_str(), W_OK | X_OK) != 0)
        error = {errno, std::generic_category()};
      if (error)
        fail_usage("[checkpoint] cannot write to {}: {}; or set enable_checkpointing=false",
                   setup.checkpoints(), error.message());
      prune(FileSystem::real(), setup.checkpoints(), 0);
    }
  }
  processes.agree(nullptr, config.get_float("collective_timeout_seconds"));
  if (first_process) {
    for (const auto& note : notes) observer.line(note);
    observer.line(fmt::format("{} · {:.1f} M parameters · {} · batch {} x {} tokens · {}", setup.model().name,
                              static_cast<double>(parameter_count(parameter_specs(setup.model()))) * 1e-6,
                              setup.ranks.mesh.to_string(), setup.sizes.step, setup.sizes.sequence,
                              setup.data.train->description()));
  }
  setup.peak = measured_peak(setup.model().dtype, processes,
                             device_of_run(setup.ranks.config, setup.ranks.mesh, processes));
  if (first_process)
    observer.line(legend_of_steps(setup.model(), setup.peak, setup.ranks.config.get_bool("use_dpo")));
  startup.mark("outputs_and_peak");
  setup.startup = std::move(startup);
  RunReport report;
  report.folder = setup.folder;
  std::atomic<int> stopped_by{0};
  const auto run_rank = [&](Context& context) {
    if (const int signal = RankRun(setup, context, observer, writer ? &*writer : nullptr).run(report))
      stopped_by = signal;
  };
  place != nullptr ? place->run(run_rank) : setup.ranks.run(run_rank);
  if (writer) writer->close();
  if (setup.routing_record) setup.routing_record->close();
  report.stopped_by = stopped_by;
  return report;
}

}  // namespace switchyard

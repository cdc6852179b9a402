#include "train/run.h"

#include <chrono>
#include <cmath>
#include <filesystem>
#include <thread>

#include "checkpoint/hub.h"
#include "checkpoint/json_file.h"
#include "core/tensor.h"
#include "kernels/dispatch.h"
#include "kernels/machine.h"
#include "kernels/machine_loops.h"
#include "metrics/atomic_file.h"
#include "train/dry_step.h"
#include "train/history.h"
#include "train/run_data.h"
#include "train/sample.h"
#include "train/step_trace.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Weights of load_parameters_path, or a null function for a random start.
Parameters::Fill make_fill(const Config& config, const ModelConfig& model,
                           const std::vector<ParameterSpec>& specs, std::vector<std::string>* notes) {
  const std::string folder = config.get_string("load_parameters_path");
  if (folder.empty()) return nullptr;
  auto weights = std::make_shared<WeightFolder>(WeightFolder::open(folder));
  const HubFamily family = hub_family(read_json_file(folder + "/config.json"));
  std::map<std::string, Shape> shapes;
  for (const auto& spec : specs) shapes[spec.name] = spec.shape;
  for (const auto& name : check_hub_tensors(*weights, family, shapes, model.layers))
    notes->push_back("[weights] left out: " + name);
  const bool in_weight = model.compat && !model.mla && model.attention_scale == 1.0;
  const double query = in_weight ? 1 / std::sqrt(static_cast<double>(model.head_dim)) : 1.0;
  return [weights, family, query](const ParameterSpec& spec) {
    Tensor t = load_from_hub(*weights, family, spec.name, spec.shape).cast(spec.dtype);
    if (query != 1.0 && spec.name.ends_with("attention.query")) {
      Tensor scaled = t.cast(DType::f32).clone();
      for (float& v : scaled.span<float>()) v *= static_cast<float>(query);
      t = scaled.cast(spec.dtype);
    }
    return t;
  };
}

// Products in registers on all cores, in FLOP/s: what "share of peak" is measured against.
double measured_peak(DType dtype) {
  ThreadPool pool(machine_cores());
  constexpr std::int64_t kSteps = 20000;
  double best = 0;
  for (const ProductLoop& loop : product_loops(dtype)) {
    for (int i = 0; i < 6; ++i) {
      const double begin = now();
      pool.for_range(pool.threads(), 1, [&](std::int64_t, std::int64_t) { loop.run(kSteps); });
      best = std::max(best, loop.flops * static_cast<double>(kSteps * pool.threads()) / (now() - begin));
    }
  }
  return best;
}

// "kernels: attention amx, gemm avx512 (amx: the operands are not bfloat16)".
std::string kernels_line() {
  std::string line = "kernels:";
  for (const KernelChoice& c : kernels_used()) {
    line += fmt::format("{}{} {}", line.back() == ':' ? " " : ", ", c.op, c.implementation);
    if (!c.refused.empty()) line += fmt::format(" ({})", c.refused);
  }
  return line;
}

// Over batches of `rows`, the last one padded; of the first `limit` batches when that is not 0.
double evaluate_all(Trainer& trainer, Dataset& data, std::int64_t rows, std::int64_t limit) {
  auto phase = trainer.timer().scope("evaluation");
  const std::int64_t all = (data.rows() + rows - 1) / rows;
  const std::int64_t batches = limit > 0 ? std::min(limit, all) : all;
  double loss = 0, targets = 0;
  for (std::int64_t i = 0; i < batches; ++i) {
    const auto r = trainer.evaluate(data.read(i * rows, rows));
    loss += r.loss_sum;
    targets += r.targets;
  }
  return targets > 0 ? loss / targets : 0;
}

std::string megabytes(std::size_t bytes) {
  return bytes < std::size_t{10} << 30 ? fmt::format("{} MiB", bytes >> 20)
                                       : fmt::format("{:.1f} GiB", static_cast<double>(bytes) / (1 << 30));
}

// Everything of a run that rank 0 keeps besides the trainer.
class Recorder {
 public:
  Recorder(RunObserver& observer, MetricsWriter& writer, double peak)
      : observer_(observer), writer_(writer), peak_(peak) {}

  void record(std::int64_t step, const StepResult& r, double seconds, Trainer& trainer,
              const BatchSizes& sizes) {
    const double ranks = trainer.context().comm->size(),
                 tokens = static_cast<double>(sizes.step * sizes.sequence);
    const double flops = train_flops_per_token(trainer.model(), sizes.sequence) * tokens;
    metrics_ = step_metrics(r, seconds, tokens / ranks, flops / ranks);
    history_.add_step(step, r);
    double worst = 0, dropped = 0;
    for (const auto& layer : r.layers) {
      worst = std::max(worst, layer.max_over_mean());
      dropped += layer.rows_dropped();
    }
    std::string text = fmt::format(
        "step {:>5}  loss {:.4f}  perplexity {:.3f}  {:.0f} tok/s  {:.3f} TFLOP/s ({:.0f}%)  grad norm "
        "{:.3f}",
        step, r.loss, std::exp(r.lm_loss), tokens / seconds, flops / seconds * 1e-12,
        100 * flops / seconds / peak_, r.raw_grad_norm);
    if (!r.layers.empty()) text += fmt::format("  load {:.2f}x  dropped {:.0f}", worst, dropped);
    observer_.line(text + fmt::format("  {:.2f} s  {}", seconds, megabytes(memory_peak())));
    observer_.progress(
        step + 1, fmt::format("loss {:.3f}{}", r.lm_loss,
                              r.layers.empty() ? "" : fmt::format("  worst expert load {:.2f}x", worst)));
  }
  void record_eval(std::int64_t step, double loss) {
    history_.add_eval(step, loss);
    observer_.line(
        fmt::format("eval after step {}: loss {:.4f}, perplexity {:.3f}", step, loss, std::exp(loss)));
    metrics_.set("eval/loss", loss);
    metrics_.set("eval/perplexity", std::exp(loss));
  }
  void finish_step(std::int64_t step) { writer_.write(step, metrics_); }
  History& history() { return history_; }

 private:
  RunObserver& observer_;
  MetricsWriter& writer_;
  double peak_;
  StepMetrics metrics_;
  History history_;
};

StepResult run_step(Trainer& trainer, Dataset& data, std::int64_t rows, std::int64_t step, TraceLog* trace) {
  const TraceSpan whole(trace, "step", "step", step);
  Batch batch;
  {
    const TraceSpan span(trace, "data", "phase");
    auto phase = trainer.timer().scope("data");
    batch = data.read(step * rows, rows);
  }
  return trainer.step(step, batch);
}

void stop_if_broken(const Config& config, std::int64_t step, double loss) {
  if (std::isnan(loss) && config.get_bool("abort_on_nan_loss"))
    fail_runtime("[train] loss is not a number at step {} (abort_on_nan_loss=true)", step);
  if (std::isinf(loss) && config.get_bool("abort_on_inf_loss"))
    fail_runtime("[train] loss is infinite at step {} (abort_on_inf_loss=true)", step);
}

void add_summary_lines(RunReport& report, const nlohmann::json& summary, const History& history) {
  double total = 0;
  for (const auto& [name, seconds] : summary["phases"].items()) total += seconds.get<double>();
  std::string phases = "time:";
  for (const auto& [name, seconds] : summary["phases"].items())
    phases += fmt::format("  {} {:.1f} s ({:.0f}%)", name, seconds.get<double>(),
                          100 * seconds.get<double>() / total);
  report.lines.push_back(phases);
  for (const auto& c : summary["collectives"]) {
    report.lines.push_back(fmt::format("collective a step: {} over {} in {}: {} calls, {:.2f} MB",
                                       c["kind"].get<std::string>(), c["axis"].get<std::string>(),
                                       c["where"].get<std::string>(), c["count"].get<std::int64_t>(),
                                       static_cast<double>(c["bytes"].get<std::int64_t>()) * 1e-6));
  }
  report.lines.push_back(kernels_line());
  if (summary.contains("ops")) {
    std::string ops = "time by op a traced step:";
    for (std::size_t i = 0; i < std::min<std::size_t>(8, summary["ops"].size()); ++i) {
      const auto& op = summary["ops"][i];
      ops += fmt::format("  {} {} {:.1f} ms", op["op"].get<std::string>(), op["pass"].get<std::string>(),
                         1e3 * op["seconds"].get<double>());
    }
    report.lines.push_back(ops);
    report.lines.push_back(fmt::format("trace: {} (open it in chrome://tracing or ui.perfetto.dev)",
                                       summary["trace"].get<std::string>()));
  }
  if (history.has_eval()) report.lines.push_back(fmt::format("held-out loss {:.4f}", history.last_eval()));
}

// Folders on the way to `path` that do not exist, deepest first.
std::vector<fs::path> missing_folders(fs::path path) {
  std::vector<fs::path> missing;
  std::error_code ignored;
  for (; !path.empty() && !fs::exists(path, ignored); path = path.parent_path()) missing.push_back(path);
  return missing;
}

// The run's folder with its metrics open; nothing of it stays behind when that fails.
MetricsWriter open_outputs(const Config& config, const std::string& folder) {
  const std::vector<fs::path> created = missing_folders(folder + "/plots");
  const std::string metrics = config.get_string("metrics_file");
  try {
    std::error_code error;
    fs::create_directories(folder + "/plots", error);
    if (error)
      fail_usage("[train] cannot create {}: {}; set base_output_directory to a folder you may write to",
                 folder, error.message());
    return MetricsWriter(metrics.empty() ? folder + "/metrics.jsonl" : metrics,
                         config.get_bool("enable_tensorboard") ? folder + "/tensorboard" : "");
  } catch (const Error&) {
    std::error_code ignored;
    for (const auto& path : created) fs::remove(path, ignored);  // only while empty
    throw;
  }
}

}  // namespace

RunReport run_training(const Config& config, Processes& processes, RunObserver& observer) {
  const Mesh mesh = mesh_from_config(config);
  require_ranks_fit(mesh, processes);
  fault_from_environment();  // unreadable is found before a folder exists
  const ModelConfig model = model_config(config);
  const TrainConfig training = train_config(config, model, mesh.axis_size("stage"));
  const BatchSizes sizes = batch_sizes(config, mesh);
  const std::vector<ParameterSpec> specs = parameter_specs(model);
  check_layout(config, mesh, model, sizes);
  const std::int64_t steps =
      config.get_int("steps") >= 0 ? config.get_int("steps") : training.schedule.schedule_steps;
  if (config.get_string("shard_mode") == "explicit") dry_step(config, model, training, mesh, sizes);
  const TracedSteps traced = traced_steps(config, steps);
  RunData data = make_run_data(config, model.vocab, sizes);
  std::vector<std::string> notes;
  const Parameters::Fill fill = make_fill(config, model, specs, &notes);
  const std::string folder = config.get_string("base_output_directory") + "/" + config.get_string("run_name");
  const bool first_process = processes.index() == 0;
  std::optional<MetricsWriter> writer;  // rank 0 writes
  if (first_process) writer.emplace(open_outputs(config, folder));
  processes.agree(nullptr, config.get_float("collective_timeout_seconds"));

  if (first_process) {
    for (const auto& note : notes) observer.line(note);
    observer.line(fmt::format("{} · {:.1f} M parameters · {} · batch {} x {} tokens · {}", model.name,
                              static_cast<double>(parameter_count(specs)) * 1e-6, mesh.to_string(),
                              sizes.step, sizes.sequence, data.train->description()));
  }
  const std::int64_t interval = data.eval ? config.get_int("eval_interval") : 0;
  RunReport report;
  report.folder = folder;

  const double peak = measured_peak(model.dtype);

  run_session(config, mesh, processes, [&](Context& context) {
    const bool speaks = context.comm->rank() == 0;
    std::vector<std::string> warnings;
    Trainer trainer(context, model, training,
                    Parameters::create(context, stage_specs(specs, context.stage, model), model.init_seed,
                                       fill, speaks ? &warnings : nullptr));
    for (const auto& w : warnings) observer.line("warning: " + w);
    std::unique_ptr<Recorder> recorder;
    if (speaks) recorder = std::make_unique<Recorder>(observer, *writer, peak);
    StepCost cost;
    StepTrace trace(context, traced, folder + "/trace.json");
    for (std::int64_t step = 0; step < steps; ++step) {
      trace.before(step);
      const double begin = now();
      current_account()->reset_peak();
      context.comm->reset_counts();
      StepResult result = run_step(trainer, *data.train, sizes.step, step, trace.log());
      const double seconds = now() - begin;
      cost = {context.comm->counts(), std::max(cost.peak_bytes, current_account()->peak()),
              std::move(result.layer_bytes)};
      trace.after(step);
      if (speaks) recorder->record(step, result, seconds, trainer, sizes);
      stop_if_broken(config, step, result.loss);
      if (interval > 0 && ((step + 1) % interval == 0 || step + 1 == steps)) {
        const double loss = evaluate_all(trainer, *data.eval, sizes.eval, config.get_int("eval_steps"));
        if (speaks) recorder->record_eval(step, loss);
      }
      if (speaks) recorder->finish_step(step);
    }
    std::string sample;
    if (data.tokenizer && steps > 0) {
      auto phase = trainer.timer().scope("sampling");
      sample = sample_text(trainer, *data.tokenizer, "The ", std::min<std::int64_t>(400, 2 * sizes.sequence),
                           sizes.sequence, 0.7, model.init_seed);
    }
    if (!speaks) return;
    nlohmann::json summary = run_summary(config, trainer, cost);
    if (trace.any()) {
      summary["trace"] = folder + "/trace.json";
      summary["ops"] = trace.op_times();
    }
    write_file_atomic(folder + "/summary.json", summary.dump(1) + "\n");
    recorder->history().write_plots(folder + "/plots", trainer.timer().totals());
    add_summary_lines(report, summary, recorder->history());
    report.sample = sample;
  });
  if (writer) writer->close();
  return report;
}

}  // namespace switchyard

#include "train/recorder.h"

#include <algorithm>
#include <cmath>

#include "core/tensor.h"

namespace switchyard {
namespace {

std::string megabytes(std::size_t bytes) {
  return bytes < std::size_t{10} << 30 ? fmt::format("{} MiB", bytes >> 20)
                                       : fmt::format("{:.1f} GiB", static_cast<double>(bytes) / (1 << 30));
}

}  // namespace

void Recorder::record(std::int64_t step, const StepResult& r, double seconds, Trainer& trainer,
                      const BatchSizes& sizes, bool shown) {
  const double ranks = trainer.context().comm->size(),
               tokens = static_cast<double>(sizes.step * sizes.sequence);
  const double flops = train_flops_per_token(trainer.model(), sizes.sequence) * tokens;
  metrics_ = step_metrics(trainer.config(), r, seconds, tokens / ranks, flops / ranks);
  history_.add_step(step, r);
  double worst = 0, dropped = 0;
  std::int64_t passes = 0;
  for (const auto& layer : r.layers) {
    passes = std::max(passes, layer.passes);
    worst = std::max(worst, layer.max_over_mean());
    dropped += layer.rows_dropped();
  }
  const std::string share = peak_ > 0 ? fmt::format(" {:.0f}%", 100 * flops / seconds / peak_) : "";
  const std::string quality =
      r.rewards ? fmt::format("margin {:.4g} preferred {:.0f}%", r.rewards->chosen - r.rewards->rejected,
                              100 * r.rewards->preferred)
                : fmt::format("ppl {:.4g}", std::exp(r.lm_loss));
  std::string text =
      fmt::format("step {:>5}  loss {:.4f} {}  {:.0f} tok/s {:.3g} TFLOP/s{}  grad {:.3g}", step, r.loss,
                  quality, tokens / seconds, flops / seconds * 1e-12, share, r.raw_grad_norm);
  if (!r.layers.empty()) text += fmt::format("  load {:.2f} dropped {:.0f}", worst, dropped);
  if (passes > 1) text += fmt::format("  {} passes", passes);
  if (r.routing) text += fmt::format("  routing agreement {:.4f}", r.routing->share());
  if (shown || !r.bad.empty() || r.total_weights == 0)
    observer_.line(text + fmt::format("  {}", megabytes(memory_peak())));
  if (!r.bad.empty()) observer_.line("warning: " + r.bad);
  if (r.total_weights == 0)
    observer_.line(
        fmt::format("warning: step {} has no targets: its loss is 0, and only a balance loss or weight decay "
                    "moves weights",
                    step));
  observer_.progress(step + 1,
                     fmt::format("loss {:.3f}{}", r.lm_loss,
                                 r.layers.empty() ? "" : fmt::format("  worst expert load {:.2f}x", worst)));
}

std::string legend_of_steps(const ModelConfig& model, double peak, bool pairs) {
  std::string text = pairs ? "columns: margin: the chosen answers' mean reward less the rejected ones'; "
                             "preferred: pairs whose "
                             "chosen answer has the larger one"
                           : "columns: ppl: perplexity";
  if (peak > 0)
    text += fmt::format("; %: of a peak of {:.3g} TFLOP/s ({} products in registers, all cores)",
                        peak * 1e-12, name_of(model.dtype));
  text += "; grad: norm of the gradients";
  if (model.moe().experts > 0)
    text +=
        "; load: the busiest expert over the mean, worst layer, 1 is even; dropped: (token, expert) "
        "assignments";
  return text + "; the last: the most memory that this process's tensors took";
}

void Recorder::record_eval(std::int64_t step, std::optional<double> mean_loss) {
  if (!mean_loss) {
    observer_.line(fmt::format("warning: no held-out loss after step {}: its rows have no targets", step));
    return;
  }
  const double loss = *mean_loss;
  history_.add_eval(step, loss);
  observer_.line(
      fmt::format("held-out loss after step {}: {:.4f}, perplexity {:.3f}", step, loss, std::exp(loss)));
  metrics_.set("eval/loss", loss);
  metrics_.set("eval/perplexity", std::exp(loss));
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
  if (const auto found = summary.find("passes"); found != summary.end() && (*found)["overflowed"] > 0) {
    report.lines.push_back(
        fmt::format("experts: {} of {} runs of MoE layers had rows over the cap, up to {} passes",
                    (*found)["overflowed"].get<std::int64_t>(), (*found)["layer_runs"].get<std::int64_t>(),
                    (*found)["most"].get<std::int64_t>()));
  }
  if (const auto skipped = summary["skipped_steps"].get<std::int64_t>(); skipped > 0)
    report.lines.push_back(fmt::format("skipped steps: {}", skipped));
  if (history.has_eval()) report.lines.push_back(fmt::format("held-out loss {:.4f}", history.last_eval()));
}

}  // namespace switchyard

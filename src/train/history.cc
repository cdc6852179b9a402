#include "train/history.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string_view>

#include "kernels/registry/record.h"
#include "metrics/atomic_file.h"
#include "metrics/svg_plot.h"

namespace switchyard {

using nlohmann::json;

void History::add_step(std::int64_t step, const StepResult& result) {
  train_.x.push_back(static_cast<double>(step));
  train_.y.push_back(result.lm_loss);
  if (load_.empty()) {
    for (const auto& layer : result.layers) {
      load_.push_back(
          {fmt::format("layer {}", layer.layer), static_cast<std::int64_t>(layer.rows.size()), {}});
    }
  }
  for (std::size_t l = 0; l < load_.size(); ++l) {
    double sum = 0;
    for (double r : result.layers[l].rows) sum += r;
    for (double r : result.layers[l].rows)
      load_[l].values.push_back(sum > 0 ? r * static_cast<double>(load_[l].rows) / sum : 0.0);
  }
}

void History::add_eval(std::int64_t step, double loss) {
  eval_.x.push_back(static_cast<double>(step));
  eval_.y.push_back(loss);
}

void History::add_lines(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) {
    const json object = json::parse(line);
    // The file has null for infinities and NaN.
    const auto number = [&](const std::string& name) {
      const auto found = object.find(name);
      return found != object.end() && found->is_number() ? found->get<double>() : std::nan("");
    };
    const auto step = object["step"].get<std::int64_t>();
    StepResult result;
    result.lm_loss = number("learning/lm_loss");
    constexpr std::string_view kLayer = "moe/layer_", kLoad = "/entropy";
    for (const auto& [name, value] : object.items()) {
      if (!name.starts_with(kLayer) || !name.ends_with(kLoad)) continue;
      LayerStatistics layer;
      layer.layer = std::stoll(name.substr(kLayer.size()));
      for (std::size_t e = 0;; ++e) {
        const std::string rows = fmt::format("{}{}/rows/expert_{}", kLayer, layer.layer, e);
        if (!object.contains(rows)) break;
        layer.rows.push_back(number(rows));
      }
      result.layers.push_back(std::move(layer));
    }
    std::sort(result.layers.begin(), result.layers.end(),
              [](const auto& a, const auto& b) { return a.layer < b.layer; });
    if (load_.empty() || load_.size() == result.layers.size()) add_step(step, result);
    if (object.contains("eval/loss")) add_eval(step, number("eval/loss"));
  }
}

std::pair<double, double> History::loss_of_quarters() const {
  const auto quarter = std::ssize(train_.y) / 4;
  if (quarter < 2) return {std::nan(""), std::nan("")};
  const auto mean = [&](auto begin) {
    return std::accumulate(begin, begin + quarter, 0.0) / static_cast<double>(quarter);
  };
  return {mean(train_.y.begin()), mean(train_.y.end() - quarter)};
}

void History::add_ends(nlohmann::json& summary) const {
  if (!train_.y.empty()) summary["final_loss"] = train_.y.back();
  if (has_eval()) summary["heldout_loss"] = last_eval();
}

void History::write_plots(const std::string& folder,
                          const std::vector<std::pair<std::string, double>>& phases) const {
  std::vector<Series> series{train_};
  if (has_eval()) series.push_back(eval_);
  write_file_atomic(folder + "/loss.svg",
                    line_chart_svg("Loss", "step", "cross entropy (nats per token)", series));
  write_file_atomic(folder + "/time_by_phase.svg", bar_chart_svg("Time by phase", "s", phases));
  if (load_.empty()) return;
  std::vector<HeatPanel> panels = load_;
  const auto columns = train_.x.size();
  for (auto& panel : panels) {  // [column][row] -> [row][column]
    const auto rows = static_cast<std::size_t>(panel.rows);
    std::vector<double> turned(panel.values.size());
    for (std::size_t c = 0; c < columns; ++c) {
      for (std::size_t r = 0; r < rows; ++r) turned[r * columns + c] = panel.values[c * rows + r];
    }
    panel.values = std::move(turned);
  }
  write_file_atomic(folder + "/expert_load.svg", heat_map_svg("Load per expert over time (1 = balanced)",
                                                              "step", "expert", train_.x, panels));
}

StepMetrics step_metrics(const TrainConfig& training, const StepResult& r, double seconds,
                         double tokens_per_rank, double flops_per_rank) {
  StepMetrics m;
  m.set("learning/loss", r.loss);
  m.set("learning/lm_loss", r.lm_loss);
  m.set("learning/moe_lb_loss", r.balance_loss);
  m.set("learning/z_loss", r.z_loss);
  m.set("learning/mtp_loss", r.prediction_loss);
  m.set("learning/indexer_loss", r.indexer_loss);
  m.set("learning/grad_norm", r.grad_norm);
  m.set("learning/raw_grad_norm", r.raw_grad_norm);
  m.set("learning/param_norm", r.param_norm);
  m.set("learning/current_learning_rate", r.learning_rate);
  m.set("learning/total_weights", r.total_weights);
  m.set("learning/skipped_steps", static_cast<double>(r.skipped));
  m.set("optim/step_skipped", r.bad.empty() ? 0 : 1);
  if (!r.scores.empty()) m.set("learning/max_logits", largest_of(r.scores));
  if (r.routing) {
    m.set("moe/routing_agreement", r.routing->share());
    m.set("moe/routing_replayed", r.routing->covered());
  }
  if (r.rewards) {
    m.set("rewards/chosen", r.rewards->chosen);
    m.set("rewards/rejected", r.rewards->rejected);
    m.set("rewards/margins", r.rewards->chosen - r.rewards->rejected);
    m.set("rewards/accuracies", r.rewards->preferred);
  } else {
    m.set("learning/perplexity", std::exp(r.lm_loss));
  }
  m.set("perf/step_time_seconds", seconds);
  m.set("perf/per_device_tokens_per_sec", tokens_per_rank / seconds);
  m.set("perf/per_device_tflops_per_sec", flops_per_rank / seconds * 1e-12);
  if (training.log_load_ratio && !r.layers.empty()) {
    double most = 0, sum = 0;
    for (const auto& layer : r.layers) most = std::max(most, layer.shard_load), sum += layer.shard_load;
    m.set("learning/moe_max_load_ratio", most);
    m.set("learning/moe_max_load_ratio_mean", sum / static_cast<double>(r.layers.size()));
  }
  for (const auto& layer : r.layers) {
    const std::string p = fmt::format("moe/layer_{}/", layer.layer);
    m.set(p + "max_over_mean_load", layer.max_over_mean());
    m.set(p + "rows_dropped", layer.rows_dropped());
    m.set(p + "entropy", layer.entropy());
    if (layer.bias_norm) m.set(p + "bias_norm", *layer.bias_norm);
    if (layer.bias_update_norm) m.set(p + "bias_update_norm", *layer.bias_update_norm);
    if (layer.passes > 0) m.set(p + "passes", static_cast<double>(layer.passes));
    if (training.log_required_factor) m.set(p + "required_ragged_buffer_factor", layer.shard_load);
    for (std::size_t e = 0; e < layer.rows.size(); ++e) {
      m.set(fmt::format("{}rows/expert_{}", p, e), layer.rows[e]);
      if (layer.dropped[e] > 0) m.set(fmt::format("{}dropped/expert_{}", p, e), layer.dropped[e]);
    }
    for (std::size_t i = 0; i < layer.rows_per_rank.size(); ++i)
      m.set(fmt::format("{}rows/rank_{}", p, i), layer.rows_per_rank[i]);
  }
  return m;
}

json run_summary(const Config& config, Trainer& trainer, const StepCost& cost) {
  json summary = to_json(config, trainer, cost);
  summary["version"] = SWITCHYARD_VERSION;
  summary["skipped_steps"] = trainer.bad_steps().skipped();
  summary["phases"] = json::object();
  for (const auto& [name, seconds] : trainer.timer().totals()) summary["phases"][name] = seconds;
  summary["kernels"] = summary["fallbacks"] = json::array();
  for (const KernelChoice& c : kernels_used()) {
    summary["kernels"].push_back({{"op", c.op}, {"implementation", c.implementation}});
    if (c.refused.empty()) continue;
    summary["fallbacks"].push_back(
        {{"op", c.op}, {"implementation", c.implementation}, {"reason", c.refused}});
  }
  if (const PassTotals& passes = trainer.passes(); passes.runs > 0) {
    summary["passes"] = {
        {"layer_runs", passes.runs}, {"overflowed", passes.overflows}, {"most", passes.most}};
    if (passes.overflows > 0) {
      summary["fallbacks"].push_back(
          {{"op", "moe"},
           {"implementation", "passes"},
           {"reason", fmt::format("rows over ragged_buffer_factor={} in {} of {} runs of MoE layers",
                                  config.get_float("ragged_buffer_factor"), passes.overflows, passes.runs)}});
    }
  }
  summary["config"] = config.resolved();
  return summary;
}

}  // namespace switchyard

#include "verify/layouts.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <sstream>

#include "config/declaration.h"
#include "core/error.h"
#include "core/json_file.h"
#include "parallel/comm/processes.h"
#include "verify/case.h"
#include "verify/model_case.h"

namespace switchyard {
namespace {

constexpr double kNumberShare = 0.1;  // tolerance of losses and norms, as a share of that of tensors
constexpr double kLaterFactor = 10;   // of all that comes after an update

// Keys that a layout must not set: they would make another model, or another training.
const std::vector<std::string> kCommonKeys{"steps", "per_device_batch_size", "max_target_length"};

bool contains(const std::vector<std::string>& list, const std::string& item) {
  return std::find(list.begin(), list.end(), item) != list.end();
}

std::string key_of(const std::string& argument) {
  return argument.substr(0, argument.find('='));
}

// The dense evaluation on one rank has its own layout and its own way through the experts.
bool is_of_layouts(const std::string& key) {
  const KeyDeclaration* const declared = find_key(key);
  return declared != nullptr && (declared->role == KeyRole::layout || declared->role == KeyRole::strategy);
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

// The config of `arguments` with what is the default here.
Config config_for_comparing(const std::vector<std::string>& arguments) {
  Config config = Config::from_args(arguments);
  for (const char* key : {"routing_record", "routing_replay"}) {
    if (!config.get_string(key).empty())
      fail_usage("[verify] {}: expected no such key with --mesh, which replays the first layout's experts",
                 key);
  }
  if (config.is_set_by_user("dataset_type") && config.get_string("dataset_type") != "synthetic") {
    fail_usage(
        "[verify] --mesh: expected no dataset_type={}, the batches are random tokens in documents; leave it "
        "out",
        config.get_string("dataset_type"));
  }
  const std::map<std::string, nlohmann::json> defaults{{"dtype", "float32"},
                                                       {"weight_dtype", "float32"},
                                                       {"steps", 3},
                                                       {"max_target_length", 32},
                                                       {"dataset_type", "synthetic"}};
  for (const auto& [key, value] : defaults) {
    if (!config.is_set_by_user(key)) config.set(key, value, "default of verify --mesh");
  }
  return config;
}

struct Layout {
  std::string name;
  Config config;
  Mesh mesh;
};

Layout make_layout(const LayoutRequest& request, const std::string& text) {
  const std::vector<std::string> own = words_of(text);
  std::vector<std::string> arguments;
  for (const std::string& word : own) {
    if (word.find('=') == std::string::npos)
      fail_usage("[verify] --mesh {}: expected key=value words, got {}", in_quotes(text), in_quotes(word));
    if (contains(kCommonKeys, key_of(word)))
      fail_usage("[verify] --mesh {}: {} is one for all layouts, give it outside of --mesh", in_quotes(text),
                 key_of(word));
  }
  for (const std::string& argument : request.arguments) {
    const bool replaced = std::any_of(
        own.begin(), own.end(), [&](const std::string& word) { return key_of(word) == key_of(argument); });
    if (!replaced) arguments.push_back(argument);
  }
  arguments.insert(arguments.end(), own.begin(), own.end());
  Config config = config_for_comparing(arguments);
  const Mesh mesh = mesh_from_config(config);
  require_ranks_fit(mesh, *one_process());
  return {own.empty() ? "the layout of the config" : fmt::format("{}", fmt::join(own, " ")),
          std::move(config), mesh};
}

// One rank, every expert on every token.
Layout dense_layout(const LayoutRequest& request) {
  std::vector<std::string> arguments;
  for (const std::string& argument : request.arguments) {
    if (!is_of_layouts(key_of(argument))) arguments.push_back(argument);
  }
  Config config = config_for_comparing(arguments);
  config.set("sparse_matmul", false, "the dense evaluation");
  config.set("capacity_factor", -1, "the dense evaluation");
  return {"the dense evaluation on one rank", std::move(config), Mesh()};
}

ModelOnMesh model_of(const Layout& layout) {
  return ModelOnMesh(layout.config, layout.mesh, ModelUse::train);
}

void check_one_model(const Layout& first, const Layout& other) {
  const auto a = model_of(first).specs, b = model_of(other).specs;
  for (std::size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    if (i < a.size() && i < b.size() && a[i].name == b[i].name && a[i].shape == b[i].shape) continue;
    fail_usage("[verify] --mesh: expected layouts of one model, but {} differs between {} and {}",
               in_quotes(i < a.size() ? a[i].name : b[i].name), in_quotes(first.name), in_quotes(other.name));
  }
}

void check_fault(const std::optional<GradientFault>& fault, const Layout& last) {
  if (!fault) return;
  if (fault->rank >= last.mesh.size())
    fail_usage("[verify] --inject-fault: rank={} is not one of the {} ranks of the last layout, {}",
               fault->rank, last.mesh.size(), in_quotes(last.name));
  const auto specs = model_of(last).specs;
  if (std::none_of(specs.begin(), specs.end(),
                   [&](const ParameterSpec& spec) { return spec.trained && spec.name == fault->gradient; }))
    fail_usage("[verify] --inject-fault: gradient={} is no trained parameter of the model; its last is {}",
               fault->gradient, specs.back().name);
}

// Gives all configs the global batch of the first. Returns its rows.
std::int64_t share_batch(std::vector<Layout>& layouts) {
  Layout& first = layouts.front();
  std::int64_t rows = 0;
  if (first.config.is_set_by_user("per_device_batch_size")) {
    rows = batch_sizes(first.config, first.mesh).step;
  } else {
    for (const Layout& layout : layouts)
      rows = std::max(rows, layout.mesh.size() * layout.config.get_int("gradient_accumulation_steps"));
  }
  for (Layout& layout : layouts) {
    const std::int64_t passes = layout.config.get_int("gradient_accumulation_steps");
    if (rows % passes != 0)
      fail_usage("[verify] gradient_accumulation_steps={} does not divide the {} rows of a step", passes,
                 rows);
    layout.config.set("per_device_batch_size",
                      static_cast<double>(rows / passes) / static_cast<double>(layout.mesh.size()),
                      "the batch of all layouts");
  }
  return rows;
}

Tensor as_tensor(const std::vector<double>& values) {
  Tensor t(DType::f32, {static_cast<std::int64_t>(values.size())});
  std::transform(values.begin(), values.end(), t.data<float>(),
                 [](double v) { return static_cast<float>(v); });
  return t;
}

// Like difference(), but relative as norms: the l2 norm of the difference over that of `want`. Adam divides a
// gradient by its own size, so an element whose gradient is rounding alone moves by a learning rate in a
// direction of its own; such elements are few.
MaxError norm_difference(const Tensor& got, const Tensor& want) {
  MaxError result = difference(got, want);
  double off = 0, size = 0;
  for (std::int64_t i = 0; i < want.size(); ++i) {
    const double g = static_cast<double>(got.data<float>()[i]),
                 w = static_cast<double>(want.data<float>()[i]);
    off += (g - w) * (g - w);
    size += w * w;
  }
  if (!std::isnan(result.max_rel)) result.max_rel = std::sqrt(off) / std::max(std::sqrt(size), 1e-6);
  return result;
}

// Rows of one report, in forward order.
class Comparison {
 public:
  Comparison(const ModelConfig& model, const LayoutRun& got, const LayoutRun& want, double tolerance,
             CaseReport& report)
      : model_(model), got_(got), want_(want), tolerance_(tolerance), report_(report) {}

  void first_pass() {
    tensor("hidden.0", "embedding", "hidden states");
    for (std::int64_t i = 0; i < model_.depth(); ++i) {
      const std::string place = fmt::format("layer {}", i);
      if (model_.layer(i).has_experts()) moe_layer(i, place);
      tensor(fmt::format("hidden.{}", i + 1), place, "hidden states");
    }
    tensor("logits", "", "");
    for (const char* name : {"loss", "balance_loss", "prediction_loss", "indexer_loss"}) {
      if (want_.tensors.contains(name))
        report_.compare({name, "", "", {}, tolerance_ * kNumberShare}, got_.tensors.at(name),
                        want_.tensors.at(name));
    }
    for (const auto& spec : parameter_specs(model_)) {
      if (spec.trained) tensor("grad." + spec.name, place_of(spec.name), "gradients");
    }
  }

  void steps() {
    for (std::size_t i = 0; i < want_.steps.size(); ++i) {
      const StepResult &got = got_.steps[i], &want = want_.steps[i];
      const double tolerance = tolerance_ * (i == 0 ? kNumberShare : kLaterFactor);
      auto number = [&](const char* what, double g, double w) {
        report_.compare({fmt::format("step {} {}", i, what), "", "training steps", {}, tolerance}, g, w);
      };
      number("loss", got.loss, want.loss);
      number("cross entropy", got.lm_loss, want.lm_loss);
      if (model_.predictions > 0) number("prediction loss", got.prediction_loss, want.prediction_loss);
      if (model_.indexer_loss > 0) number("indexer loss", got.indexer_loss, want.indexer_loss);
      number("balance loss", got.balance_loss, want.balance_loss);
      number("gradient norm", got.raw_grad_norm, want.raw_grad_norm);
      loads(i, got, want);
      for (std::size_t l = 0; l < want_.biases[i].size(); ++l) {
        const std::int64_t layer = model_.moe_layers()[l];
        report_.compare({fmt::format("step {} layers.{}.moe.gate_bias", i, layer),
                         fmt::format("layer {}", layer),
                         "router biases",
                         {},
                         tolerance},
                        got_.biases[i][l], want_.biases[i][l]);
      }
      number("parameter norm", got.param_norm, want.param_norm);
    }
  }

  void parameters() {
    for (const auto& spec : parameter_specs(model_)) {
      const std::string name = "final." + spec.name;
      report_.rows.push_back({name, place_of(spec.name), "parameters after the steps",
                              norm_difference(got_.tensors.at(name), want_.tensors.at(name)),
                              tolerance_ * kLaterFactor, true});
    }
    for (const std::string& name : got_.disagreements) {
      const double nan = std::numeric_limits<double>::quiet_NaN();
      report_.rows.push_back({name + " equal on all ranks", "", "", {nan, nan}, 0, true});
    }
  }

 private:
  void tensor(const std::string& name, const std::string& place, const std::string& group) {
    report_.compare({name, place, group, {}, tolerance_}, got_.tensors.at(name), want_.tensors.at(name));
  }

  void moe_layer(std::int64_t layer, const std::string& place) {
    tensor(fmt::format("router.{}.weights", layer), place, "router weights");
    const auto ties = got_.tensors.find(fmt::format("ties.{}", layer));
    if (ties == got_.tensors.end()) return;  // the choices are this layout's own
    const std::span<const float> widths = ties->second.span<float>();
    const double widest = static_cast<double>(*std::max_element(widths.begin(), widths.end()));
    report_.rows.push_back({fmt::format("router.{}.choices", layer),
                            place,
                            "router choices",
                            {widest, widest},
                            tolerance_,
                            true});
    const auto turned = std::count_if(widths.begin(), widths.end(), [](float w) { return w > 0; });
    if (turned > 0)
      report_.notices.push_back(
          fmt::format("[verify] {}: the router would choose other experts for {} of {} tokens, all within "
                      "{:.1e} of a tie",
                      place, turned, widths.size(), widest));
  }

  void loads(std::size_t step, const StepResult& got, const StepResult& want) {
    for (std::size_t l = 0; l < want.layers.size(); ++l) {
      const std::int64_t layer = want.layers[l].layer;
      auto row = [&](const char* what, const std::vector<double>& g, const std::vector<double>& w) {
        report_.compare({fmt::format("step {} layers.{} {}", step, layer, what),
                         fmt::format("layer {}", layer),
                         "loads",
                         {},
                         0},
                        as_tensor(g), as_tensor(w));
      };
      row("rows per expert", got.layers[l].rows, want.layers[l].rows);
      row("rows dropped", got.layers[l].dropped, want.layers[l].dropped);
    }
  }

  const ModelConfig& model_;
  const LayoutRun &got_, &want_;
  double tolerance_;
  CaseReport& report_;
};

CaseReport compare(const Layout& layout, const LayoutRun& got, const Layout& other, const LayoutRun& want,
                   std::optional<double> tolerance) {
  CaseReport report{layout.name, "against " + other.name, got.mesh, {}, {}, ""};
  const ModelConfig model = model_of(layout).model;
  const double usual = model.has_delta() ? kDeltaLayoutTolerance : kLayoutTolerance;
  Comparison comparison(model, got, want, tolerance.value_or(usual), report);
  comparison.first_pass();
  comparison.steps();
  comparison.parameters();
  return report;
}

bool may_drop(const Config& config) {
  if (!config.get_bool("sparse_matmul")) return config.get_float("capacity_factor") > 0;
  return config.get_float("ragged_buffer_factor") > 0 && config.is_none("moe_dropless_fallback");
}

void give_no_verdict(CaseReport& report) {
  for (Row& row : report.rows) row.judged = false;
  report.notices.push_back(fmt::format(
      "[verify] {} dropped rows: its differences from the dense evaluation, which drops none, are no verdict",
      report.path));
}

}  // namespace

std::vector<CaseReport> compare_layouts(const LayoutRequest& request) {
  CHECK(!request.layouts.empty(), "no layout");
  std::vector<Layout> layouts;
  for (const std::string& text : request.layouts) layouts.push_back(make_layout(request, text));
  check_fault(request.fault, layouts.back());
  layouts.push_back(dense_layout(request));
  for (const Layout& layout : layouts) check_one_model(layouts.front(), layout);
  const std::int64_t rows = share_batch(layouts), steps = layouts.front().config.get_int("steps");
  std::vector<LayoutRun> runs;
  runs.reserve(layouts.size());  // the first is referred to
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    const bool spoiled = i + 2 == layouts.size();
    runs.push_back(run_layout(layouts[i].config, layouts[i].mesh, rows, steps,
                              i == 0 ? nullptr : &runs.front(), spoiled ? request.fault : std::nullopt));
  }
  std::vector<CaseReport> reports;
  for (std::size_t i = 0; i + 1 < layouts.size(); ++i) {
    reports.push_back(compare(layouts[i], runs[i], layouts.back(), runs.back(), request.tolerance));
    if (may_drop(layouts[i].config) && runs[i].dropped_rows()) give_no_verdict(reports.back());
    const std::vector<std::string>& notices = layouts[i].config.notices();
    reports.back().notices.insert(reports.back().notices.end(), notices.begin(), notices.end());
    if (i > 0)
      reports.push_back(compare(layouts[i], runs[i], layouts.front(), runs.front(), request.tolerance));
  }
  return reports;
}

}  // namespace switchyard

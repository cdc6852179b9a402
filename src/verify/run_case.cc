// Verifies a training run of the reference: <run>.json with its metrics, and its initial weights.
#include <cmath>
#include <filesystem>
#include <optional>

#include "core/error.h"
#include "core/json_file.h"
#include "train/trainer.h"
#include "verify/case.h"
#include "verify/model_case.h"

namespace switchyard {
namespace {

// Tolerance of the l2 norm of a final parameter, as a share of that of tensors: the reference's own runs on
// different meshes agree to 2e-7.
constexpr double kFinalShare = 0.1;

// Finds a run's files. A run on several devices has only its .json; the first weights, their logits and
// gradients are those of its one-device sibling.
struct RunFiles {
  std::string own;  // path without ".json"
  std::optional<std::string> sibling;
  // Metrics that are the sibling's, for the reference's own depend on the sharding.
  std::vector<std::string> metrics_of_sibling;

  std::string find(const std::string& suffix) const {
    if (std::filesystem::exists(own + suffix) || !sibling) return own + suffix;
    return *sibling + suffix;
  }
};

RunFiles files_of(const std::filesystem::path& path, const nlohmann::json& run) {
  RunFiles files;
  const std::string name = path.stem();
  files.own = path.parent_path() / name;
  if (run.contains("maxtext_version")) {
    const nlohmann::json sibling = run.value("weights_of", nlohmann::json());
    if (!sibling.is_string()) return files;
    files.sibling = path.parent_path() / sibling.get<std::string>();
    // The sparse path logs the balance loss of one shard.
    if (run["config"].value("sparse_matmul", true))
      files.metrics_of_sibling = {"learning/moe_lb_loss", "learning/loss"};
    return files;
  }
  for (const std::string suffix : {"_fsdp8", "_ep8_dense", "_ep8"}) {
    if (!name.ends_with(suffix)) continue;
    files.sibling = path.parent_path() / (name.substr(0, name.size() - suffix.size()) + "_1dev");
    if (suffix == "_fsdp8") {
      for (const auto& metric : run["metrics"].at(0).items())
        files.metrics_of_sibling.push_back(metric.key());
    }
    break;
  }
  return files;
}

nlohmann::json read_run(const std::string& path) {
  nlohmann::json run = read_json_file(path);
  for (const char* key : {"config", "devices", "batch", "metrics", "final_parameters"}) {
    if (!run.is_object() || !run.contains(key))
      fail_usage("[verify] {}: no training run, it has no `{}`", path, key);
  }
  return run;
}

// Returns the results to compare ours with: the run's own, or its sibling's where sharding changes them.
nlohmann::json results_of(const RunFiles& files, const nlohmann::json& run) {
  if (files.metrics_of_sibling.empty()) return run;
  const nlohmann::json sibling = read_run(*files.sibling + ".json");
  const bool all = files.metrics_of_sibling.size() == run["metrics"].at(0).size();
  nlohmann::json results = all ? sibling : run;
  for (std::size_t step = 0; step < results["metrics"].size(); ++step) {
    for (const std::string& metric : files.metrics_of_sibling)
      results["metrics"][step][metric] = sibling["metrics"].at(step).at(metric);
  }
  return results;
}

Tensor matrix_of(const nlohmann::json& rows) {
  const auto values = rows.get<std::vector<std::vector<std::int32_t>>>();
  std::vector<std::int32_t> flat;
  const std::size_t width = values.empty() ? 0 : values[0].size();
  for (const auto& row : values) {
    if (row.size() == width) flat.insert(flat.end(), row.begin(), row.end());
  }
  if (flat.size() != width * values.size()) return Tensor(DType::i32, {0});  // ragged: refused by its shape
  return Tensor::of<std::int32_t>(
      {static_cast<std::int64_t>(values.size()), static_cast<std::int64_t>(width)}, flat);
}

// The reference's name of each scalar of a step.
std::map<std::string, double> metrics_of(const StepResult& r) {
  std::map<std::string, double> metrics = {{"learning/loss", r.loss},
                                           {"learning/lm_loss", r.lm_loss},
                                           {"learning/moe_lb_loss", r.balance_loss},
                                           {"learning/z_loss", r.z_loss},
                                           {"learning/mtp_loss", r.prediction_loss},
                                           {"learning/indexer_loss", r.indexer_loss},
                                           {"learning/perplexity", std::exp(r.lm_loss)},
                                           {"learning/grad_norm", r.grad_norm},
                                           {"learning/raw_grad_norm", r.raw_grad_norm},
                                           {"learning/param_norm", r.param_norm},
                                           {"learning/current_learning_rate", r.learning_rate},
                                           {"learning/total_weights", r.total_weights},
                                           {"optim/step_skipped", r.bad.empty() ? 0.0 : 1.0}};
  if (!r.scores.empty()) metrics["learning/max_logits"] = largest_of(r.scores);
  return metrics;
}

// The results of a run of ours.
struct Outcome {
  std::vector<StepResult> steps;
  std::vector<std::vector<Tensor>> biases;  // per step, per MoE layer [E]
};

// One of a run's evaluations of its own batch: keys that say how, and the loss by whether the weights are the
// first or the last ones.
struct Evaluation {
  std::string name;
  Config config;
  ModelConfig model;
  std::map<std::string, double> stored, losses;  // of "initial" and "final"
};

std::vector<Evaluation> evaluations_of(const nlohmann::json& run,
                                       const std::map<std::string, nlohmann::json>& keys,
                                       const CaseRequest& request, const Tensor& inputs, CaseReport& report) {
  std::vector<Evaluation> evaluations;
  const nlohmann::json none = nlohmann::json::object();
  const nlohmann::json stored = run.value("evaluations", none), initial = stored.value("initial", none);
  for (const auto& [name, result] : initial.items()) {
    std::map<std::string, nlohmann::json> with = keys;
    for (const auto& [key, value] : result.at("keys").items()) with[key] = value;
    Config config = case_config(std::move(with), request, inputs.dim(0), inputs.dim(1), report);
    ModelConfig model = model_config(config);
    Evaluation evaluation{name, std::move(config), std::move(model), {}, {}};
    for (const auto& [when, all] : stored.items()) {  // evaluation/loss has the balance loss in it
      const nlohmann::json& metrics = all.at(name);
      evaluation.stored[when] = metrics.at("evaluation/total_loss").get<double>() /
                                metrics.at("evaluation/total_weights").get<double>();
    }
    evaluations.push_back(std::move(evaluation));
  }
  return evaluations;
}

// On the weights of `trainer`, which stays as it is.
double loss_of(const Evaluation& evaluation, Context& context, Trainer& trainer, const Batch& batch) {
  Trainer own(context, evaluation.model, trainer.config(), Parameters(trainer.parameters()));
  std::optional<AxisRules> rules;
  std::optional<Trainer::UnderRules> layout;
  if (!evaluation.config.is_none("custom_mesh_and_rule_for_eval")) {
    rules.emplace(evaluation.config.axis_rules_for_eval(), *context.mesh);
    layout.emplace(own, *rules);
  }
  const Trainer::EvalResult result = own.evaluate(batch);
  return result.loss_sum / result.targets;
}

class RunCase {
 public:
  RunCase(const CaseRequest& request, const HubModel& hub, const nlohmann::json& results, CaseReport& report)
      : tolerance_(request.tolerance.value_or(kDefaultTolerance)),
        hub_(hub),
        results_(results),
        report_(report) {}

  void compare_first_pass(const RunFiles& files, Gather& gather) {
    const auto logits = SafetensorsFile::open(files.find(".logits.safetensors"));
    report_.compare({"logits", "", "", {}, tolerance_}, gather.whole("logits"), logits.read("logits"));
    const auto gradients =
        unfused(hub_.family(), hub_.hub_config(),
                std::make_shared<WeightFolder>(WeightFolder::open(files.find(".grads.safetensors"))));
    for (const auto& spec : hub_.specs()) {
      const auto names = hub_.hub_names(spec);
      const auto tensors = hub_.gradients_to_hub(spec, gather.whole("grad." + spec.name));
      for (std::size_t i = 0; i < names.size(); ++i) {
        report_.compare({"grad." + names[i], place_of(spec.name), "gradients", {}, tolerance_}, tensors[i],
                        gradients->read(names[i]));
      }
    }
  }

  void compare_steps(const Outcome& outcome) {
    const auto biases = results_.value("gate_bias_after_step", nlohmann::json());
    for (std::size_t i = 0; i < outcome.steps.size(); ++i) {
      const auto got = metrics_of(outcome.steps[i]);
      for (const auto& [name, want] : results_.at("metrics").at(i).items()) {
        const auto at = got.find(name);
        if (at == got.end())
          fail_usage("[verify] {}: step {} has a metric {} we do not log", report_.path, i, in_quotes(name));
        report_.compare({fmt::format("step {} {}", i, name), "", "metrics", {}, tolerance_}, at->second,
                        want.get<double>());
      }
      if (!biases.is_null()) compare_biases(i, biases.at(i), outcome.biases[i]);
    }
  }

  void compare_evaluations(std::span<const Evaluation> evaluations) {
    for (const Evaluation& evaluation : evaluations) {
      for (const auto& [when, loss] : evaluation.stored)
        report_.compare(
            {fmt::format("{} evaluation {}", when, evaluation.name), "", "metrics", {}, tolerance_},
            evaluation.losses.at(when), loss);
    }
  }

  void compare_final(Gather& gather) {
    const nlohmann::json& stored = results_.at("final_parameters");
    // The stored facts of a tensor do not depend on the order of its elements, except for the first and last
    // element, which are those of the first part of a fused tensor and of the last.
    std::vector<std::string> order;
    std::map<std::string, std::pair<std::string, std::vector<float>>> in_files;  // place, elements
    for (const auto& spec : hub_.specs()) {
      const auto names = hub_.hub_names(spec);
      const auto tensors = hub_.weights_to_hub(spec, gather.whole("final." + spec.name));
      for (std::size_t i = 0; i < names.size(); ++i) {
        const auto fused = fused_place(hub_.family(), hub_.hub_config(), names[i]);
        const std::string name = fused ? fused->fused : names[i];
        if (!in_files.contains(name)) order.push_back(name);
        auto& [place, elements] = in_files[name];
        place = place_of(spec.name);
        const Tensor values = tensors[i].cast(DType::f32);
        elements.insert(elements.end(), values.span<float>().begin(), values.span<float>().end());
      }
    }
    for (const std::string& name : order) {
      const auto& [place, elements] = in_files.at(name);
      final_parameter(name, place, elements, stored.at(name));
    }
  }

 private:
  void compare_biases(std::size_t step, const nlohmann::json& stored, const std::vector<Tensor>& got) {
    // By path: the layers of a stack, or a prediction layer, whose path comes after.
    std::vector<std::vector<float>> want;
    for (const nlohmann::json& layers : stored) {
      if (!layers.empty() && layers[0].is_number()) {
        want.push_back(layers.get<std::vector<float>>());
        continue;
      }
      for (const nlohmann::json& layer : layers) want.push_back(layer.get<std::vector<float>>());
    }
    if (want.size() != got.size())
      fail_usage("[verify] {}: gate_bias_after_step holds {} layers, the model {}", report_.path, want.size(),
                 got.size());
    for (std::size_t l = 0; l < want.size(); ++l) {
      const auto layer = hub_.model().moe_layers()[l];
      report_.compare({fmt::format("step {} layers.{} router bias", step, layer),
                       fmt::format("layer {}", layer),
                       "router bias",
                       {},
                       tolerance_},
                      got[l],
                      Tensor::of<float>({static_cast<std::int64_t>(want[l].size())}, std::span(want[l])));
    }
  }

  void final_parameter(const std::string& name, const std::string& place, std::span<const float> values,
                       const nlohmann::json& want) {
    double sum = 0, squares = 0;
    for (const float v : values) {
      sum += static_cast<double>(v);
      squares += static_cast<double>(v) * static_cast<double>(v);
    }
    auto row = [&](const char* what, bool judged, double got) {
      report_.compare({fmt::format("final {} {}", name, what),
                       place,
                       "final parameters",
                       {},
                       tolerance_ * kFinalShare,
                       judged},
                      got, want.at(what).get<double>());
    };
    row("l2", true, std::sqrt(squares));
    row("sum", false, sum);
    row("first", false, static_cast<double>(values.front()));
    row("last", false, static_cast<double>(values.back()));
  }

  double tolerance_;
  const HubModel& hub_;
  const nlohmann::json& results_;
  CaseReport& report_;
};

}  // namespace

CaseReport verify_training_run(const CaseRequest& request) {
  CaseReport report{request.path, "training run", "", {}, {}, ""};
  const nlohmann::json run = read_run(request.path);
  const RunFiles files = files_of(request.path, run);
  const nlohmann::json results = results_of(files, run);
  const Tensor inputs = matrix_of(run["batch"].at("inputs")), targets = matrix_of(run["batch"].at("targets"));
  if (inputs.rank() != 2) fail_usage("[verify] {}: expected batch inputs [B,S]", request.path);
  std::map<std::string, nlohmann::json> keys = run["config"];
  keys["compat"] = run.contains("maxtext_version") ? "maxtext" : std::string(kCompat202608);
  keys["ranks"] = run["devices"];
  std::vector<Evaluation> evaluations = evaluations_of(run, keys, request, inputs, report);
  const Config config = case_config(std::move(keys), request, inputs.dim(0), inputs.dim(1), report);
  ModelOnMesh on_mesh(config, ModelUse::train);
  const TrainConfig train = train_config(config, on_mesh.model, on_mesh.mesh.axis_size("stage"));
  const ModelFamily& family = family_to_write(config, on_mesh.model);
  const nlohmann::json hub_config = hub_config_to_write(config, on_mesh.model);
  const auto initial = std::make_shared<WeightFolder>(WeightFolder::open(files.find(".init.safetensors")));
  const HubModel hub(on_mesh.model, family, hub_config, unfused(family, hub_config, initial));
  const ModelOnRanks ranks(std::move(on_mesh), nullptr, hub.fill());
  const Batch batch = case_batch(request.path, inputs, targets, hub.model().vocab);
  const std::size_t steps = results["metrics"].size();

  batch_sizes(config, ranks.mesh);  // refuses microbatches that do not divide it
  report.mesh = ranks.mesh.to_string();
  Gather gather(ranks.mesh);
  Outcome outcome;
  ranks.run([&](Context& context) {
    Parameters parameters = ranks.load(context);
    gather_pass(context, hub.model(), parameters, batch, gather);
    Trainer trainer(context, hub.model(), train, std::move(parameters));
    const auto evaluate = [&](const char* when) {
      for (Evaluation& evaluation : evaluations) {
        const double loss = loss_of(evaluation, context, trainer, batch);
        if (context.comm->rank() == 0) evaluation.losses[when] = loss;
      }
    };
    evaluate("initial");
    for (std::size_t i = 0; i < steps; ++i) {
      const StepResult result = trainer.step(static_cast<std::int64_t>(i), batch);
      auto biases = router_biases(trainer);
      if (context.comm->rank() != 0) continue;
      outcome.steps.push_back(result);
      outcome.biases.push_back(std::move(biases));
    }
    evaluate("final");
    gather_weights(trainer, gather);
  });
  RunCase results_case(request, hub, results, report);
  results_case.compare_first_pass(files, gather);
  results_case.compare_steps(outcome);
  results_case.compare_evaluations(evaluations);
  results_case.compare_final(gather);
  report_disagreements(gather, report);
  return report;
}

}  // namespace switchyard

#include "verify/preference_case.h"

#include <cmath>
#include <map>
#include <utility>

#include "chat/chat_template.h"
#include "checkpoint/safetensors.h"
#include "core/error.h"
#include "core/json_file.h"
#include "data/preference_pairs.h"
#include "models/families/hub_source.h"
#include "ops/preference_loss.h"
#include "verify/model_case.h"
#include "verify/trajectory.h"

namespace switchyard {
namespace {

// As of an adapter that is trained otherwise (verify/adapter_case.cc).
constexpr double kTrainedPairsBound = 2e-4, kPairsLossBound = 5e-6, kPairsNormBound = 2e-5;

// A number for each pair and side.
struct SideNumbers {
  std::vector<double> chosen, rejected;
};

Tensor tensor_of(const std::vector<double>& values) {
  const Tensor out(Memory(), DType::f32, {std::ssize(values)});
  for (std::size_t i = 0; i < values.size(); ++i) out.data<float>()[i] = static_cast<float>(values[i]);
  return out;
}

class PreferenceCase {
 public:
  PreferenceCase(const CaseRequest& request, const std::filesystem::path& folder)
      : folder_(folder),
        stored_(SafetensorsFile::open(folder / "io.safetensors")),
        expected_(read_json_file((folder / "expected.json").string())),
        trajectory_(read_trajectory((folder / "trajectory.json").string())),
        source_(open_hub_source(folder)),
        report_{request.path, "adapter", "", {}, {}, ""} {
    const auto rows = std::ssize(expected_.at("pairs")), sequence = 2 * stored_.read("chosen").dim(1);
    auto keys = config_from_hub(source_.config);
    keys["adapter"] = (folder / "adapter").string();
    keys["load_parameters_path"] = folder.string();
    config_ = case_config(keys, request, rows, sequence, report_);
    tolerance_ = request.tolerance.value_or(kDefaultTolerance);
    dpo_ = {.beta = expected_.at("dpo_beta"), .label_smoothing = expected_.at("dpo_label_smoothing")};
    dpo_.pairs = static_cast<double>(rows);
    orpo_ = {.kind = PreferenceKind::orpo, .odds_factor = expected_.at("orpo_lambda")};
    read_batch(rows, sequence);
  }

  CaseReport run() {
    const ModelOnRanks ranks(ModelOnMesh(*config_, ModelUse::train));
    report_.mesh = ranks.mesh.to_string();
    batch_sizes(*config_, ranks.mesh);
    if (ranks.mesh.axis_size("stage") > 1)
      fail_usage("[verify] {}: pairs run in one pipeline stage: expected ici_pipeline_parallelism=1",
                 report_.path);
    TrainConfig train = training(*config_, ranks.model, trajectory_);
    train.preference = dpo_;
    Gather pass(ranks.mesh), trained(ranks.mesh);
    std::vector<StepResult> steps;
    ranks.run([&](Context& context) {
      Parameters parameters = ranks.load(context);
      gather_log_probs(context, ranks.model, parameters, pass);
      Trainer trainer(context, ranks.model, train, std::move(parameters));
      bool first = true;
      trainer.on_gradients([&](const Parameters& all) {
        if (!std::exchange(first, false)) return;
        for (const auto& p : all.all())
          if (p.spec.of_adapter) pass.put_gradient(context, "grad." + p.spec.name, p.array);
      });
      for (std::size_t i = 0; i < trajectory_.losses.size(); ++i) {
        const StepResult result = trainer.step(static_cast<std::int64_t>(i), batch_);
        if (context.comm->rank() == 0) steps.push_back(result);
      }
      gather_weights(trainer, trained);
    });
    compare_numbers(pass);
    compare_gradients(pass, ranks);
    compare_steps(steps);
    compare_trained(trained, ranks);
    report_disagreements(pass, report_);
    return std::move(report_);
  }

 private:
  // The pairs of data.jsonl, each in a row of its own, once they are those of the case.
  void read_batch(std::int64_t rows, std::int64_t sequence) {
    const auto tokenizer = make_tokenizer("huggingface", folder_.string());
    const chat::ChatTemplate chat(*chat::find_template(folder_, (folder_ / "chat_template.jinja").string()),
                                  {});
    ConversationOptions options;
    options.columns = {"prompt", "completion"};
    options.eos = tokenizer->eos();
    const ConversationEncoder encoder(*tokenizer, &chat, options);
    ThreadPool pool(1);
    const std::string file = (folder_ / "data.jsonl").string();
    const auto pairs = read_pairs(file, encoder, {"prompt", "chosen", "rejected"}, pool);
    const nlohmann::json& want = expected_.at("pairs");
    for (std::size_t i = 0; i < std::max(pairs.size(), want.size()); ++i) {
      const auto same = [&](const Conversation& side, const char* name) {
        return want[i].at(name).at("tokens") == nlohmann::json(side.tokens) &&
               want[i].at(name).at("mask") == nlohmann::json(side.mask);
      };
      if (i >= pairs.size() || i >= want.size() || !same(pairs[i].chosen, "chosen") ||
          !same(pairs[i].rejected, "rejected"))
        fail_usage("[verify] {}: pair {} has other tokens or targets than in expected.json", file, i);
    }
    const PackingOptions packing{.batch = rows, .sequence = sequence, .shuffle = false, .pack = false};
    batch_ = make_pairs(pair_rows(pairs, file, packing, {}), file, packing)->read(0, rows);
    orpo_.pairs = static_cast<double>(rows);
    orpo_.chosen_targets = count_pairs(batch_.targets_segmentation).chosen_targets;
  }

  // Of the model and of its base alone, and the loss of orpo.
  void gather_log_probs(Context& context, const ModelConfig& model, const Parameters& parameters,
                        Gather& pass) {
    const NoGrad no_grad(context);
    ModelConfig base = model;
    base.adapter = nullptr;
    const DeviceBatch placed = place_batch(context, batch_);
    pass.put(context, "log_probs", target_log_probs(context, model, parameters, placed));
    pass.put(context, "reference", target_log_probs(context, base, parameters, placed));
    LossOptions options;
    options.preference = orpo_;
    pass.put(context, "orpo_loss",
             training_losses(context, model, parameters, placed, options).preference->loss);
  }

  // Sums over the targets of each answer.
  SideNumbers sums_of(const Tensor& numbers) const {
    const std::int64_t length = numbers.dim(1);
    SideNumbers out{std::vector<double>(static_cast<std::size_t>(numbers.dim(0)), 0.0), {}};
    out.rejected = out.chosen;
    const auto segments = batch_.targets_segmentation.span<std::int32_t>();
    for (std::int64_t i = 0; i < numbers.size(); ++i) {
      const std::int32_t segment = segments[static_cast<std::size_t>(i)];
      if (segment == 0) continue;
      (segment == 1 ? out.chosen : out.rejected)[static_cast<std::size_t>(i / length)] +=
          static_cast<double>(numbers.data<float>()[i]);
    }
    return out;
  }

  void compare_numbers(Gather& pass) {
    const SideNumbers ours = sums_of(pass.whole("log_probs")), base = sums_of(pass.whole("reference"));
    SideNumbers rewards = ours;
    std::vector<double> losses;
    for (std::size_t p = 0; p < ours.chosen.size(); ++p) {
      rewards.chosen[p] = dpo_.beta * (ours.chosen[p] - base.chosen[p]);
      rewards.rejected[p] = dpo_.beta * (ours.rejected[p] - base.rejected[p]);
      const double d = rewards.chosen[p] - rewards.rejected[p];
      losses.push_back((1 - dpo_.label_smoothing) * std::log1p(std::exp(-d)) +
                       dpo_.label_smoothing * std::log1p(std::exp(d)));
    }
    compare("chosen_log_probs", ours.chosen);
    compare("rejected_log_probs", ours.rejected);
    compare("reference_chosen_log_probs", base.chosen);
    compare("reference_rejected_log_probs", base.rejected);
    compare("rewards_chosen", rewards.chosen);
    compare("rewards_rejected", rewards.rejected);
    compare("losses", losses);
    compare("orpo_losses", orpo_losses(ours));
    report_.compare({"orpo_loss", "", "", {}, tolerance_}, pass.whole("orpo_loss").reshaped({1}),
                    stored_.read("orpo_loss"));
  }
  // Of each pair, without the likelihood of its chosen answer.
  std::vector<double> orpo_losses(SideNumbers means) const {
    const Tensor ones = Memory().zeros(DType::f32, batch_.targets_segmentation.shape());
    for (float& one : ones.span<float>()) one = 1;
    const SideNumbers targets = sums_of(ones);
    std::vector<double> losses;
    for (std::size_t p = 0; p < means.chosen.size(); ++p) {
      const double c = means.chosen[p] / targets.chosen[p], r = means.rejected[p] / targets.rejected[p];
      const double odds = c - r - std::log(-std::expm1(c)) + std::log(-std::expm1(r));
      losses.push_back(orpo_.odds_factor * std::log1p(std::exp(-odds)));
    }
    return losses;
  }
  void compare(const std::string& name, const std::vector<double>& got) {
    report_.compare({name, "", "", {}, tolerance_}, tensor_of(got), stored_.read(name));
  }

  void compare_gradients(Gather& pass, const ModelOnRanks& ranks) {
    const auto gradients = to_peft(
        *ranks.adapter, [&](const std::string& name) { return pass.whole("grad." + name); }, true);
    for (const auto& [name, gradient] : gradients)
      report_.compare({"grad." + name, "", "gradients", {}, tolerance_}, gradient,
                      stored_.read("grad." + name));
    for (const auto& [name, entry] : stored_.entries()) {
      if (name.starts_with("grad.") && !gradients.contains(name.substr(5)))
        fail_usage("[verify] {}: tensor {} is no gradient of this adapter", stored_.path(), in_quotes(name));
    }
  }

  // The first step's loss is that of io.safetensors.
  void compare_steps(const std::vector<StepResult>& steps) {
    report_.compare({"loss", "", "", {}, tolerance_}, tensor_of({steps.at(0).loss}), stored_.read("loss"));
    for (std::size_t i = 0; i < steps.size(); ++i) {
      report_.compare({fmt::format("training step {} loss", i), "", "training", {}, kPairsLossBound},
                      steps[i].loss, trajectory_.losses[i]);
      report_.compare({fmt::format("training step {} gradient norm", i), "", "training", {}, kPairsNormBound},
                      steps[i].raw_grad_norm, trajectory_.norms[i]);
    }
  }

  void compare_trained(Gather& trained, const ModelOnRanks& ranks) {
    const SafetensorsFile file = SafetensorsFile::open(folder_ / "trained.safetensors");
    const auto values = to_peft(
        *ranks.adapter, [&](const std::string& name) { return trained.whole("final." + name); }, false);
    for (const auto& [name, value] : values)
      report_.compare({"trained." + name, "", "trained adapter", {}, kTrainedPairsBound}, value,
                      file.read(name));
  }

  std::filesystem::path folder_;
  SafetensorsFile stored_;
  nlohmann::json expected_;
  Trajectory trajectory_;
  HubSource source_;
  CaseReport report_;
  std::optional<Config> config_;
  PreferenceOptions dpo_, orpo_;
  Batch batch_;
  double tolerance_ = 0;
};

}  // namespace

bool is_preference_case(const std::filesystem::path& folder) {
  return SafetensorsFile::open(folder / "io.safetensors").contains("chosen_log_probs");
}

CaseReport verify_preferences(const CaseRequest& request) {
  return PreferenceCase(request, request.path).run();
}

}  // namespace switchyard

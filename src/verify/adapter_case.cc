// Verifies an adapter of PEFT: config.json, model.safetensors, adapter/, io.safetensors, trajectory.json and
// trained.safetensors in one folder.
#include <cmath>
#include <filesystem>
#include <map>

#include "checkpoint/safetensors.h"
#include "core/error.h"
#include "core/json_file.h"
#include "models/families/hub_source.h"
#include "verify/case.h"
#include "verify/model_case.h"
#include "verify/preference_case.h"
#include "verify/trajectory.h"

namespace switchyard {
namespace {

// Relative bounds of what AdamW makes of an adapter: it divides by the size of a gradient, so that rounding
// of one that is all but zero moves a weight by up to a whole learning rate.
constexpr double kTrainedBound = 2e-4, kLossBound = 5e-6, kNormBound = 2e-5;

class AdapterCase {
 public:
  AdapterCase(const CaseRequest& request, const std::filesystem::path& folder)
      : folder_(folder),
        stored_(SafetensorsFile::open(folder / "io.safetensors")),
        source_(open_hub_source(folder)),
        report_{request.path, "adapter", "", {}, {}, ""} {
    if (std::filesystem::exists(folder / "trajectory.json"))
      trajectory_ = read_trajectory(folder / "trajectory.json");
    const bool rows = stored_.contains("packed.inputs");  // of conversations
    const Tensor inputs = stored_.read(rows ? "packed.inputs" : "input_ids");
    auto keys = config_from_hub(source_.config);
    keys["adapter"] = (folder / "adapter").string();
    keys["load_parameters_path"] = folder.string();
    // The reference counts a token for each expert that it chose; ours divides by how many it chooses.
    if (trajectory_.balance_weight > 0)
      keys["load_balance_loss_weight"] =
          trajectory_.balance_weight * keys.at("num_experts_per_tok").get<double>();
    config_ = case_config(keys, request, inputs.dim(0), inputs.dim(1), report_);
    batch_ =
        rows ? packed_batch()
             : case_batch(stored_.path(), inputs, stored_.read("targets"), config_->get_int("vocab_size"));
    tolerance_ = request.tolerance.value_or(kDefaultTolerance);
  }

  CaseReport run() {
    const ModelOnRanks ranks(ModelOnMesh(*config_, ModelUse::train));
    report_.mesh = ranks.mesh.to_string();
    batch_sizes(*config_, ranks.mesh);
    const TrainConfig train = training(*config_, ranks.model, trajectory_);
    Gather pass(ranks.mesh), trained(ranks.mesh);
    std::vector<StepResult> steps;
    ranks.run([&](Context& context) {
      Parameters parameters = ranks.load(context);
      gather_pass(context, ranks.model, parameters, batch_, pass);
      Trainer trainer(context, ranks.model, train, std::move(parameters));
      for (std::size_t i = 0; i < trajectory_.losses.size(); ++i) {
        const StepResult result = trainer.step(static_cast<std::int64_t>(i), batch_);
        if (context.comm->rank() == 0) steps.push_back(result);
      }
      if (!trajectory_.losses.empty()) gather_weights(trainer, trained);
    });
    compare_base();
    compare_pass(pass, ranks);
    compare_merged(ranks);
    compare_steps(steps);
    if (!trajectory_.losses.empty()) compare_trained(trained, ranks);
    report_disagreements(pass, report_);
    return std::move(report_);
  }

 private:
  // Rows of several documents, as the case has packed them.
  Batch packed_batch() const {
    const auto of = [&](const char* name) { return stored_.read(std::string("packed.") + name); };
    return {of("inputs"), of("targets"), of("inputs_position"), of("inputs_segmentation"),
            of("targets_segmentation")};
  }
  Tensor want(const std::string& name) const { return stored_.read(name).cast(DType::f32); }

  // The model without its adapter.
  void compare_base() {
    Config config = *config_;
    config.set("adapter", "", "the base alone");
    const ModelOnRanks ranks(ModelOnMesh(config, ModelUse::train));
    Gather pass(ranks.mesh);
    ranks.run([&](Context& context) {
      const Parameters parameters = ranks.load(context);
      gather_pass(context, ranks.model, parameters, batch_, pass, nullptr, false);
    });
    if (stored_.contains("base_logits")) compare("base_logits", "", pass.whole("logits"));
    if (stored_.contains("base_loss")) compare("base_loss", "", pass.whole("loss"));
  }
  void compare_pass(Gather& pass, const ModelOnRanks& ranks) {
    if (stored_.contains("logits")) compare("logits", "", pass.whole("logits"));
    compare_loss(pass);
    if (stored_.contains("balance_loss")) compare("balance_loss", "", pass.whole("balance_loss"));
    const auto gradients = to_peft(
        *ranks.adapter, [&](const std::string& name) { return pass.whole("grad." + name); }, true);
    for (const auto& [name, gradient] : gradients) {
      if (has_gradients()) compare("grad." + name, "gradients", gradient);
    }
    if (has_gradients()) {
      for (const auto& [ours, name] : ranks.adapter->whole)
        compare_whole(pass, "grad.", ours, name, "gradients", tolerance_, ranks);
    } else {
      report_.remarks.push_back(
          fmt::format("forward values only: {} has no gradients, so none are compared", stored_.path()));
    }
    for (const auto& [name, entry] : stored_.entries()) {
      if (name.starts_with("grad.") && !compared_.contains(name))
        fail_usage("[verify] {}: tensor {} is no gradient of this adapter", stored_.path(), in_quotes(name));
    }
  }
  bool has_gradients() const {
    return std::ranges::any_of(stored_.entries(),
                               [](const auto& entry) { return entry.first.starts_with("grad."); });
  }
  // The reference's loss is without the balance loss.
  void compare_loss(Gather& pass) {
    const Tensor loss = pass.whole("loss").clone();
    if (pass.contains("balance_loss")) loss.data<float>()[0] -= pass.whole("balance_loss").data<float>()[0];
    compare("loss", "", loss);
  }
  // A weight that the adapter holds whole.
  void compare_whole(Gather& from, const std::string& prefix, const std::string& ours,
                     const std::string& name, const char* group, double bound, const ModelOnRanks& ranks) {
    const ModelFamily& family = family_of(source_.config);
    const auto spec = std::ranges::find(ranks.specs, ours, &ParameterSpec::name);
    const Tensor got = to_hub(hub_tensors(family, ours, spec->shape),
                              from.whole((prefix == "grad." ? "grad." : "final.") + ours))
                           .front();
    compared_.insert(prefix + name);
    const SafetensorsFile& file = prefix == "grad." ? stored_ : *trained_;
    report_.compare({prefix + name, "", group, {}, bound}, got,
                    file.read(prefix == "grad." ? prefix + name : name));
  }
  void compare_merged(const ModelOnRanks& ranks) {
    const ModelFamily& family = family_of(source_.config);
    const auto results =
        unfused(family, source_.config, std::make_shared<WeightFolder>(WeightFolder::open(stored_.path())));
    std::set<std::string> unread;
    for (const std::string& name : results->names())
      if (name.starts_with("merged.")) unread.insert(name);
    for (const ParameterSpec& spec : ranks.specs) {
      const auto found = ranks.adapter->adapter.weights.find(spec.name);
      if (found == ranks.adapter->adapter.weights.end()) continue;
      const auto& tensors = ranks.adapter->tensors;
      const Tensor sum =
          merged_weight(load_from_hub(*source_.weights, family, spec.name, spec.shape), spec, found->second,
                        tensors.at(lora_a_of(spec.name, found->second)), tensors.at(lora_b_of(spec.name)));
      const HubTensors hub = hub_tensors(family, spec.name, spec.shape);
      const std::vector<Tensor> parts = to_hub(hub, sum);
      for (std::size_t i = 0; i < parts.size(); ++i) {
        const std::string name = "merged." + hub.names[i];
        if (!results->contains(name)) continue;
        unread.erase(name);
        report_.compare({name, "", "merged weights", {}, tolerance_}, parts[i], results->read(name));
      }
    }
    for (const auto& [ours, name] : ranks.adapter->whole)
      unread.erase("merged." + name.substr(std::string_view("base_model.model.").size()));
    if (!unread.empty())
      fail_usage("[verify] {}: tensor {} is of no weight that this adapter changes", stored_.path(),
                 in_quotes(*unread.begin()));
  }
  void compare_steps(const std::vector<StepResult>& steps) {
    for (std::size_t i = 0; i < steps.size(); ++i) {
      report_.compare({fmt::format("training step {} loss", i), "", "training", {}, kLossBound},
                      steps[i].loss, trajectory_.losses[i]);
      report_.compare({fmt::format("training step {} gradient norm", i), "", "training", {}, kNormBound},
                      steps[i].raw_grad_norm, trajectory_.norms[i]);
    }
  }
  void compare_trained(Gather& trained, const ModelOnRanks& ranks) {
    trained_ = SafetensorsFile::open(folder_ / "trained.safetensors");
    const auto values = to_peft(
        *ranks.adapter, [&](const std::string& name) { return trained.whole("final." + name); }, false);
    for (const auto& [name, value] : values)
      report_.compare({"trained." + name, "", "trained adapter", {}, kTrainedBound}, value,
                      trained_->read(name));
    for (const auto& [ours, name] : ranks.adapter->whole)
      compare_whole(trained, "", ours, name, "trained adapter", kTrainedBound, ranks);
  }
  void compare(const std::string& name, const char* group, const Tensor& got) {
    compared_.insert(name);
    report_.compare({name, "", group, {}, tolerance_}, got, want(name));
  }

  std::filesystem::path folder_;
  SafetensorsFile stored_;
  std::optional<SafetensorsFile> trained_;
  HubSource source_;
  CaseReport report_;
  Trajectory trajectory_;
  std::optional<Config> config_;
  Batch batch_;
  double tolerance_ = 0;
  std::set<std::string> compared_;
};

}  // namespace

CaseReport verify_adapter(const CaseRequest& request) {
  if (is_preference_case(request.path)) return verify_preferences(request);
  return AdapterCase(request, request.path).run();
}

}  // namespace switchyard

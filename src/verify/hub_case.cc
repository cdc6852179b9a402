// Verifies a model with the numbers beside it: a Hugging Face folder with io.safetensors, trajectory.json and
// generate.json, or a GGUF file in such a folder.
#include <algorithm>
#include <filesystem>
#include <numeric>
#include <set>

#include "core/error.h"
#include "core/json_file.h"
#include "models/families/hub_source.h"
#include "routing/routing_keys.h"
#include "routing/step_routing.h"
#include "texts/generate.h"
#include "train/trainer.h"
#include "verify/case.h"
#include "verify/model_case.h"

namespace switchyard {
namespace {

// Gradient norms after the first update may be off by this many tolerances. AdamW divides a gradient by its
// own size: one element of 2e-8 (of layers.0.attention.wq_a in deepseek3-tiny) that float32 rounds to the
// other sign moves its weight by a whole learning rate, and the norms that follow by up to 3e-5. The README
// of the cases measured 1.1e-5 for transformers itself in float32 and allows ten times that.
constexpr double kNormTolerances = 5;

struct Tolerances {
  double pass, losses, norms;  // of one pass; of losses and norms while training
};

Tolerances tolerances_of(const CaseRequest& request, const ModelConfig& model) {
  // A gated delta net amplifies rounding: ten times what transformers itself is off in float32, by the README
  // of the cases.
  if (model.has_delta() && !request.tolerance) return {2.4e-4, 3.3e-4, 5.5e-3};
  const double tolerance = request.tolerance.value_or(kDefaultTolerance);
  return {tolerance, tolerance, tolerance * kNormTolerances};
}

// The contents of trajectory.json.
struct Trajectory {
  OptimizerConfig optimizer;
  double learning_rate = 0;
  std::vector<double> losses, norms;  // before each update
};

Trajectory read_trajectory(const std::string& path) {
  const nlohmann::json file = read_json_file(path);
  const nlohmann::json& stated = file.at("optimizer");
  if (stated.at("name") != "AdamW" || stated.at("schedule") != "constant" ||
      !stated.at("clipping").is_null()) {
    fail_usage("[verify] {}: expected AdamW at a constant rate without clipping", path);
  }
  Trajectory t;
  t.optimizer.b1 = stated.at("betas").at(0);
  t.optimizer.b2 = stated.at("betas").at(1);
  t.optimizer.eps = stated.at("eps");
  t.optimizer.weight_decay = stated.at("weight_decay");
  t.learning_rate = stated.at("lr");
  t.losses = file.at("loss_before_update").get<std::vector<double>>();
  t.norms = file.at("gradient_norm_before_update").get<std::vector<double>>();
  if (t.losses.size() != t.norms.size()) {
    fail_usage("[verify] {}: expected as many losses as norms, got {} and {}", path, t.losses.size(),
               t.norms.size());
  }
  return t;
}

TrainConfig training(const Config& config, const ModelConfig& model, const Trajectory& trajectory) {
  TrainConfig t = train_config(config, model, mesh_from_config(config).axis_size("stage"));
  const DType mu_dtype = t.update.optimizer.mu_dtype;
  t.update.optimizer = trajectory.optimizer;
  t.update.optimizer.mu_dtype = mu_dtype;
  t.schedule = {};
  t.schedule.type = "wsd";  // without warm-up and decay: constant
  t.schedule.learning_rate = trajectory.learning_rate;
  t.schedule.warmup_steps_fraction = t.schedule.wsd_decay_steps_fraction = 0;
  t.schedule.schedule_steps = static_cast<std::int64_t>(trajectory.losses.size());
  t.clip = 0;
  t.update.decay_exclude.clear();
  return t;
}

// Slots of every token in ascending order of expert id, as the file has them.
void sort_slots(Tensor& ids, Tensor& weights) {
  const auto slots = static_cast<std::size_t>(ids.shape().back());
  for (std::int64_t t = 0; t < ids.size() / ids.shape().back(); ++t) {
    std::int32_t* id = ids.data<std::int32_t>() + t * ids.shape().back();
    float* weight = weights.data<float>() + t * ids.shape().back();
    std::vector<std::pair<std::int32_t, float>> pairs(slots);
    for (std::size_t k = 0; k < slots; ++k) pairs[k] = {id[k], weight[k]};
    std::sort(pairs.begin(), pairs.end());
    for (std::size_t k = 0; k < slots; ++k) std::tie(id[k], weight[k]) = pairs[k];
  }
}

// 1 for each key whose bit is set (kernels/attention/index_keys.h), else 0: i32 [B,S,T].
Tensor chosen_of_bits(const Tensor& bits, const Shape& shape) {
  Tensor chosen(DType::i32, shape);
  const std::int64_t keys = shape.back(), words = bits.shape().back();
  for (std::int64_t i = 0; i < chosen.size(); ++i) {
    const auto word = static_cast<std::uint32_t>(bits.data<std::int32_t>()[i / keys * words + i % keys / 32]);
    chosen.data<std::int32_t>()[i] = static_cast<std::int32_t>(word >> (i % keys % 32) & 1u);
  }
  return chosen;
}

// The numbers of the keys whose bits are set, ascending, then -1: i32 [B,S,K].
Tensor listed_of_bits(const Tensor& bits, const Shape& shape) {
  Tensor listed(DType::i32, shape);
  const std::int64_t words = bits.shape().back(), most = shape.back();
  for (std::int64_t row = 0; row < listed.size() / most; ++row) {
    std::int32_t* const out = listed.data<std::int32_t>() + row * most;
    std::fill_n(out, most, -1);
    std::int64_t count = 0;
    for (std::int64_t key = 0; key < words * 32; ++key) {
      const auto word = static_cast<std::uint32_t>(bits.data<std::int32_t>()[row * words + key / 32]);
      if ((word >> (key % 32) & 1u) == 0) continue;
      if (count < most) out[count] = static_cast<std::int32_t>(key);
      ++count;
    }
    if (count > most) out[most - 1] = -2;  // more than the reference chose: no list is equal to this one
  }
  return listed;
}

// The listed keys up to each query's own, then -1: a query that sees fewer keys than it may choose has others
// in its list, which attention hides. i32 [B,S,K].
Tensor visible_of(const Tensor& listed) {
  Tensor visible(DType::i32, listed.shape());
  const std::int64_t most = listed.shape().back(), queries = listed.shape()[1];
  for (std::int64_t row = 0; row < listed.size() / most; ++row) {
    const std::int32_t* const from = listed.data<std::int32_t>() + row * most;
    std::int32_t* const to = visible.data<std::int32_t>() + row * most;
    std::fill_n(to, most, -1);
    std::copy_if(from, from + most, to, [&](std::int32_t key) { return 0 <= key && key <= row % queries; });
  }
  return visible;
}

class HubCase {
 public:
  HubCase(const CaseRequest& request, const HubWeights& stored, const HubModel& model)
      : tolerance_(tolerances_of(request, model.model()).pass), stored_(stored), hub_(model) {}

  void compare_pass(Gather& pass, CaseReport& report) {
    const ModelConfig& model = hub_.model();
    hidden(0, "embedding", pass, report);
    for (std::int64_t i = 0; i < model.layers; ++i) {
      const std::string place = fmt::format("layer {}", i);
      if (model.layer(i).has_experts()) routing(i, place, pass, report);
      keys(i, place, pass, report);
      hidden(i + 1, place, pass, report);
    }
    report.compare({"logits", "", "", {}, tolerance_}, pass.whole("logits"), want("logits"));
    report.compare({"loss", "", "", {}, tolerance_}, pass.whole("loss"), want("loss"));
    for (const auto& spec : hub_.specs()) {
      if (spec.trained) gradient(spec, pass, report);
    }
    for (const std::string& name : stored_.names()) {
      if (!used_.contains(name))
        fail_usage("[verify] {}: tensor {} is not one of this model's results", stored_.path(),
                   in_quotes(name));
    }
    report_disagreements(pass, report);
  }

  Tensor want(const std::string& name) {
    used_.insert(name);
    return stored_.read(name);
  }

 private:
  void hidden(std::int64_t i, const std::string& place, Gather& pass, CaseReport& report) {
    const std::string name = fmt::format("hidden.{}", i);
    report.compare({name, place, "", {}, tolerance_}, pass.whole(name), want(name));
  }
  void routing(std::int64_t layer, const std::string& place, Gather& pass, CaseReport& report) {
    const std::string name = fmt::format("router.{}.", layer);
    Tensor ids = pass.whole(name + "indices"), weights = pass.whole(name + "weights");
    sort_slots(ids, weights);
    if (hub_.family().scales_sum) {
      for (float& weight : weights.span<float>())
        weight /= hub_.model().moe_of(hub_.model().layer(layer)).scaling;
    }
    report.compare({name + "indices", place, "", {}, 0}, ids, want(name + "indices"));
    report.compare({name + "weights", place, "", {}, tolerance_}, weights, want(name + "weights"));
  }
  // Compares the keys that an indexer chooses for each query.
  void keys(std::int64_t layer, const std::string& place, Gather& pass, CaseReport& report) {
    const std::string name = fmt::format("indexer.{}.keys", layer),
                      listed = fmt::format("indexer.{}.chosen", layer);
    if (!pass.contains(name)) return;
    if (stored_.contains(name)) {
      const Tensor wanted = want(name);
      report.compare({name, place, "", {}, 0}, chosen_of_bits(pass.whole(name), wanted.shape()), wanted);
    }
    if (stored_.contains(listed)) {
      const Tensor wanted = visible_of(want(listed));
      report.compare({listed, place, "", {}, 0}, listed_of_bits(pass.whole(name), wanted.shape()), wanted);
    }
  }
  void gradient(const ParameterSpec& spec, Gather& pass, CaseReport& report) {
    const auto names = hub_.hub_names(spec);
    const auto tensors = hub_.gradients_to_hub(spec, pass.whole("grad." + spec.name));
    for (std::size_t i = 0; i < names.size(); ++i) {
      const std::string name = "grad." + names[i];
      report.compare({name, place_of(spec.name), "gradients", {}, tolerance_}, tensors[i], want(name));
    }
  }

  double tolerance_;
  const HubWeights& stored_;
  const HubModel& hub_;
  std::set<std::string> used_;
};

void compare_training(const Trajectory& trajectory, const std::vector<StepResult>& steps,
                      const Tolerances& tolerances, CaseReport& report) {
  for (std::size_t i = 0; i < steps.size(); ++i) {
    report.compare({fmt::format("training step {} loss", i), "", "training", {}, tolerances.losses},
                   steps[i].loss, trajectory.losses[i]);
    const double allowed = i == 0 ? tolerances.losses : tolerances.norms;
    report.compare({fmt::format("training step {} gradient norm", i), "", "training", {}, allowed},
                   steps[i].raw_grad_norm, trajectory.norms[i]);
  }
}

// The contents of generate.json: a prompt and its continuation by greedy decoding.
struct Continuation {
  std::vector<std::int32_t> prompt, tokens;
};

Continuation read_continuation(const std::string& path, std::int64_t vocab) {
  const nlohmann::json file = read_json_file(path);
  Continuation c{file.at("prompt"), file.at("continuation")};
  for (const std::int32_t id : c.prompt) {
    if (id < 0 || id >= vocab)
      fail_usage("[verify] {}: token {} is outside the vocabulary of {}", path, id, vocab);
  }
  if (c.prompt.empty() || c.tokens.empty())
    fail_usage("[verify] {}: expected a prompt and a continuation, got {} and {} tokens", path,
               c.prompt.size(), c.tokens.size());
  return c;
}

std::vector<std::int32_t> continued(Context& context, const ModelConfig& model, const Parameters& parameters,
                                    const Continuation& wanted) {
  const auto count = static_cast<std::int64_t>(wanted.tokens.size());
  Generator generator(context, model, parameters, 1, static_cast<std::int64_t>(wanted.prompt.size()) + count);
  const GenerateOptions options{.most_tokens = count, .vocab = model.vocab};
  return generate(generator, {wanted.prompt}, options, [](std::size_t, std::int32_t) {}).texts[0].tokens;
}

void compare_tokens(const std::vector<std::int32_t>& got, const std::vector<std::int32_t>& want,
                    CaseReport& report) {
  const Shape shape{static_cast<std::int64_t>(want.size())};
  report.compare({"generated tokens", "", "generation", {}, 0},
                 Tensor::of<std::int32_t>(shape, std::span(got)),
                 Tensor::of<std::int32_t>(shape, std::span(want)));
}

// The pass, and where there is an index, with its experts.
std::optional<RoutingAgreement> replayed_pass(Context& context, const HubModel& hub,
                                              const Parameters& parameters, const Batch& batch, Gather& pass,
                                              const std::shared_ptr<const RoutingIndex>& index) {
  if (index == nullptr) {
    gather_pass(context, hub.model(), parameters, batch, pass);
    return std::nullopt;
  }
  const auto routing = std::make_shared<StepRouting>(hub.model(), index, false);
  ModelConfig model = hub.model();
  model.moe_execution.tape = routing;
  routing->begin_step(0, BatchRows(batch));
  routing->begin_pass(0);
  gather_pass(context, model, parameters, batch, pass);
  routing->end_pass();
  return routing->end_step(context).agreement;
}

void report_agreement(const RoutingAgreement& agreement, CaseReport& report) {
  Row row{"routing agreement", "", "", {}, 0};
  row.judged = false;
  report.compare(row, agreement.share(), 1.0);
  report.notices.push_back(
      fmt::format("routing_replay: {:.0f} experts of {:.0f} replayed; the router would have chosen {:.0f} of "
                  "them: {:.6f}",
                  agreement.replayed, agreement.tokens, agreement.agreed, agreement.share()));
}

}  // namespace

CaseReport verify_hub_model(const CaseRequest& request) {
  const std::filesystem::path path = request.path;
  const bool one_file = !std::filesystem::is_directory(path);
  const std::filesystem::path folder = one_file ? path.parent_path() : path;
  CaseReport report{request.path, one_file ? "GGUF file" : "Hugging Face folder", "", {}, {}, ""};
  const HubSource source = open_hub_source(request.path);
  const ModelFamily& family = family_of(source.config);
  // The numbers have the names that the folder's weights have.
  const std::filesystem::path folder_config = folder / "config.json";
  const nlohmann::json named =
      std::filesystem::exists(folder_config) ? read_json_file(folder_config) : source.config;
  const auto results_file = unfused(
      family_of(named), named, std::make_shared<WeightFolder>(WeightFolder::open(folder / "io.safetensors")));
  const HubWeights& stored = *results_file;
  const Tensor inputs = stored.read("input_ids"), targets = stored.read("targets");
  if (inputs.rank() != 2)
    fail_usage("[verify] {}: expected input_ids [B,S], got {}", stored.path(), to_string(inputs.shape()));
  const Config config =
      case_config(config_from_hub(source.config), request, inputs.dim(0), inputs.dim(1), report);
  ModelOnMesh on_mesh(config, ModelUse::train);
  const HubModel hub(on_mesh.model, family, source.config, source.weights);
  const ModelOnRanks ranks(std::move(on_mesh), nullptr, hub.fill());
  const Batch batch = case_batch(stored.path(), inputs, targets, hub.model().vocab);
  const std::string trajectory_path = folder / "trajectory.json";
  Trajectory trajectory;
  if (std::filesystem::exists(trajectory_path)) trajectory = read_trajectory(trajectory_path);
  const std::string continuation_path = folder / "generate.json";
  std::optional<Continuation> continuation;
  if (std::filesystem::exists(continuation_path))
    continuation = read_continuation(continuation_path, hub.model().vocab);
  const TrainConfig train = training(config, hub.model(), trajectory);

  refuse_routing_key(config, "routing_record", "`train`, `generate` and `serve`");
  const RoutingFiles routing = routing_files(config, hub.model());
  std::optional<RoutingAgreement> agreement;
  batch_sizes(config, ranks.mesh);  // refuses microbatches that do not divide it
  report.mesh = ranks.mesh.to_string();
  Gather pass(ranks.mesh);
  std::vector<StepResult> steps;
  std::vector<std::int32_t> tokens;
  ranks.run([&](Context& context) {
    Parameters parameters = ranks.load(context);
    const auto agreed = replayed_pass(context, hub, parameters, batch, pass, routing.replay);
    if (context.comm->rank() == 0) agreement = agreed;
    if (continuation) {
      const auto own = continued(context, hub.model(), parameters, *continuation);
      if (context.comm->rank() == 0) tokens = own;
    }
    Trainer trainer(context, hub.model(), train, std::move(parameters));
    for (std::size_t i = 0; i < trajectory.losses.size(); ++i) {
      const StepResult result = trainer.step(static_cast<std::int64_t>(i), batch);
      if (context.comm->rank() == 0) steps.push_back(result);
    }
  });
  HubCase results(request, stored, hub);
  results.want("input_ids");
  results.want("targets");
  results.compare_pass(pass, report);
  if (agreement) report_agreement(*agreement, report);
  if (continuation) compare_tokens(tokens, continuation->tokens, report);
  compare_training(trajectory, steps, tolerances_of(request, hub.model()), report);
  return report;
}

}  // namespace switchyard

// Verifies a model with the numbers beside it: a Hugging Face folder with io.safetensors, trajectory.json and
// generate.json, or a GGUF file in such a folder.
#include <algorithm>
#include <filesystem>
#include <set>

#include "core/error.h"
#include "core/json_file.h"
#include "models/families/hub_source.h"
#include "routing/routing_keys.h"
#include "routing/step_routing.h"
#include "texts/generate.h"
#include "train/trainer.h"
#include "verify/bounds.h"
#include "verify/case.h"
#include "verify/model_case.h"
#include "verify/reference_choices.h"
#include "verify/trajectory.h"

namespace switchyard {
namespace {

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

// A reference of the forward pass alone has no gradient at all.
bool has_gradients(const HubWeights& stored) {
  return std::ranges::any_of(stored.names(),
                             [](const std::string& name) { return name.starts_with("grad."); });
}

// Such a reference may also lack targets, and then the loss.
bool has_loss(const HubWeights& stored) {
  return has_gradients(stored) || stored.contains("loss") || stored.contains("targets");
}

// The targets of a case; -100, none, for each token of a case without loss.
Tensor read_targets(const HubWeights& stored, const Shape& shape) {
  if (has_loss(stored)) return stored.read("targets");
  Tensor none(DType::i32, shape);
  std::ranges::fill(none.span<std::int32_t>(), -100);
  return none;
}

class HubCase {
 public:
  // `replayed`: the choices that the pass took from the reference.
  HubCase(const Bounds& bounds, const HubWeights& stored, const HubModel& model,
          const ReferenceChoices& replayed)
      : bounds_(bounds),
        stored_(stored),
        hub_(model),
        replayed_(replayed),
        has_gradients_(has_gradients(stored)) {}

  void compare_pass(Gather& pass, CaseReport& report) {
    const ModelConfig& model = hub_.model();
    hidden(0, "embedding", pass, report);
    for (std::int64_t i = 0; i < model.layers; ++i) {
      const std::string place = fmt::format("layer {}", i);
      if (model.layer(i).has_experts()) routing(i, place, pass, report);
      keys(i, place, pass, report);
      hidden(i + 1, place, pass, report);
    }
    report.compare({"logits", "", "", {}, bounds_.logits}, pass.whole("logits"), want("logits"));
    if (has_loss(stored_))
      report.compare({"loss", "", "", {}, bounds_.loss}, pass.whole("loss"), want("loss"));
    for (const auto& spec : hub_.specs()) {
      if (spec.trained && has_gradients_) gradient(spec, pass, report);
    }
    if (!has_gradients_)
      report.remarks.push_back(
          fmt::format("forward values only: {} has no gradients, so none are compared", stored_.path()));
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
    report.compare({name, place, "", {}, bounds_.hidden}, pass.whole(name), want(name));
  }
  void routing(std::int64_t layer, const std::string& place, Gather& pass, CaseReport& report) {
    const std::string name = fmt::format("router.{}.", layer);
    Tensor ids = pass.whole(name + "indices"), weights = pass.whole(name + "weights");
    sort_slots(ids, weights);
    if (hub_.family().scales_sum) {
      for (float& weight : weights.span<float>())
        weight /= hub_.model().moe_of(hub_.model().layer(layer)).scaling;
    }
    const Tensor wanted = want(name + "indices");
    if (replayed_.experts.contains(layer))
      ties(name + "indices", place, "experts", expert_ties(pass.whole(fmt::format("ties.{}", layer))),
           report);
    else
      report.compare({name + "indices", place, "", {}, 0}, ids, wanted);
    report.compare({name + "weights", place, "", {}, bounds_.router_weights}, weights,
                   want(name + "weights"));
  }
  // A row for choices that were replayed: how far ours are from them.
  void ties(const std::string& name, const std::string& place, const char* what, const Ties& ties,
            CaseReport& report) {
    Row row{name, place, "", {ties.widest, ties.widest}, bounds_.choices};
    if (ties.different == 0)
      row.note = fmt::format("all {} choices of {} are the reference's", ties.choices, what);
    else
      row.note = fmt::format("{} of {} choices of {} {} not the reference's, the widest {} from a tie",
                             ties.different, ties.choices, what, ties.different == 1 ? "is" : "are",
                             ties.widest == 0 ? "0" : fmt::format("{:.1e}", ties.widest));
    report.rows.push_back(std::move(row));
  }
  // Compares the keys that an indexer chooses for each query.
  void keys(std::int64_t layer, const std::string& place, Gather& pass, CaseReport& report) {
    const std::string name = fmt::format("indexer.{}.keys", layer),
                      listed = fmt::format("indexer.{}.chosen", layer);
    if (!pass.contains(name)) return;
    const auto replayed = replayed_.keys.find(layer);
    for (const std::string& form : {name, listed}) {
      if (!stored_.contains(form)) continue;
      const Tensor wanted = want(form);
      // Where a case has both forms, the masks are replayed, and the lists must say the same.
      if (replayed != replayed_.keys.end() && (form == name || !stored_.contains(name)))
        ties(form, place, "keys", key_ties(pass.whole(fmt::format("key_ties.{}", layer)), replayed->second),
             report);
      else if (form == name)
        report.compare({form, place, "", {}, 0}, chosen_of_bits(pass.whole(name), wanted.shape()), wanted);
      else
        report.compare({form, place, "", {}, 0}, listed_of_bits(pass.whole(name), wanted.shape()),
                       visible_of(wanted));
    }
  }
  void gradient(const ParameterSpec& spec, Gather& pass, CaseReport& report) {
    const auto names = hub_.hub_names(spec);
    const auto tensors = hub_.gradients_to_hub(spec, pass.whole("grad." + spec.name));
    for (std::size_t i = 0; i < names.size(); ++i) {
      const std::string name = "grad." + names[i];
      report.compare({name, place_of(spec.name), "gradients", {}, bounds_.gradients}, tensors[i], want(name));
    }
  }

  Bounds bounds_;
  const HubWeights& stored_;
  const HubModel& hub_;
  const ReferenceChoices& replayed_;
  bool has_gradients_;
  std::set<std::string> used_;
};

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

struct PassRequest {
  const Batch& batch;
  std::shared_ptr<const RoutingIndex> index;          // of routing_replay; null: the reference's choices
  std::shared_ptr<const ReferenceChoices> reference;  // nothing in it: none
  bool backward = true;
};

// The pass, with the choices that it is to take.
std::optional<RoutingAgreement> replayed_pass(Context& context, const HubModel& hub,
                                              const Parameters& parameters, const PassRequest& request,
                                              Gather& pass) {
  ModelConfig model = hub.model();
  if (request.index == nullptr) {
    if (request.reference->any()) model.moe_execution.tape = replay_of(request.reference, hub.model(), pass);
    gather_pass(context, model, parameters, request.batch, pass, nullptr, request.backward);
    return std::nullopt;
  }
  const auto routing = std::make_shared<StepRouting>(hub.model(), request.index, false);
  model.moe_execution.tape = routing;
  routing->begin_step(0, BatchRows(request.batch));
  routing->begin_pass(0);
  gather_pass(context, model, parameters, request.batch, pass, nullptr, request.backward);
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
  if (std::filesystem::is_directory(folder / "adapter")) return verify_adapter(request);
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
  const Tensor inputs = stored.read("input_ids"), targets = read_targets(stored, inputs.shape());
  if (inputs.rank() != 2)
    fail_usage("[verify] {}: expected input_ids [B,S], got {}", stored.path(), to_string(inputs.shape()));
  const Config config =
      case_config(config_from_hub(source.config), request, inputs.dim(0), inputs.dim(1), report);
  ModelOnMesh on_mesh(config, ModelUse::train);
  const HubModel hub(on_mesh.model, family, source.config, source.weights);
  const ModelOnRanks ranks(std::move(on_mesh), nullptr, hub.fill());
  const Bounds bounds = case_bounds(folder, hub.model(), request.tolerance);
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
  // A file of experts takes the place of the reference's choices.
  const auto reference = std::make_shared<ReferenceChoices>();
  if (routing.replay == nullptr) *reference = read_choices(stored, hub.model(), inputs.shape());
  const PassRequest asked{batch, routing.replay, reference, has_gradients(stored)};
  Gather pass(ranks.mesh);
  std::vector<StepResult> steps;
  std::vector<std::int32_t> tokens;
  ranks.run([&](Context& context) {
    Parameters parameters = ranks.load(context);
    const auto agreed = replayed_pass(context, hub, parameters, asked, pass);
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
  HubCase results(bounds, stored, hub, *reference);
  results.want("input_ids");
  if (has_loss(stored)) results.want("targets");
  results.compare_pass(pass, report);
  if (agreement) report_agreement(*agreement, report);
  if (continuation) compare_tokens(tokens, continuation->tokens, report);
  compare_training(trajectory, steps, bounds, report);
  if (bounds.of_file)
    report.remarks.push_back(fmt::format("bounds of {}", (folder / "bounds.json").string()));
  return report;
}

}  // namespace switchyard

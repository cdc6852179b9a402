// Verifies a MoE-layer file: inputs, weights and results of one routed layer of the reference.
#include <algorithm>
#include <filesystem>
#include <set>

#include "autograd/op.h"
#include "checkpoint/safetensors.h"
#include "core/error.h"
#include "core/json_file.h"
#include "engine/session.h"
#include "engine/whole_tensors.h"
#include "models/blocks/layers.h"
#include "models/parameters.h"
#include "moe/balance.h"
#include "moe/block.h"
#include "moe/router.h"
#include "moe/routing_tape.h"
#include "ops/basic.h"
#include "verify/case.h"
#include "verify/gather.h"
#include "verify/model_case.h"

namespace switchyard {
namespace {

constexpr double kRoundedTolerance = 4e-3;  // partial outputs rounded to bfloat16 by MaxText of August 2026
constexpr double kBfloat16Tolerance = 1.4e-2;  // what MaxText's own bfloat16 is off from float64

// The file's names of the layer's weights, by ours below `moe.`.
const std::map<std::string, std::string>& file_names() {
  static const std::map<std::string, std::string> names{
      {"gate", "gate"}, {"gate_bias", "bias"}, {"wi_0", "wi_0"}, {"wi_1", "wi_1"}, {"wo", "wo"}};
  return names;
}

std::string below(const std::string& parameter) {
  return parameter.substr(parameter.rfind('.') + 1);
}

// The case's layer is the first that has experts.
std::int64_t first_moe_layer(const ModelConfig& model) {
  return model.moe_layers().front();
}

// Specs of the routed layer's own weights.
std::vector<ParameterSpec> layer_specs(const ModelConfig& model) {
  const std::string prefix = fmt::format("layers.{}.moe.", first_moe_layer(model));
  std::vector<ParameterSpec> specs;
  for (auto& spec : parameter_specs(model)) {
    if (spec.name.starts_with(prefix) && spec.name.find("moe.shared.") == std::string::npos)
      specs.push_back(std::move(spec));
  }
  return specs;
}

// Everything one run of the layer needs; shared by the ranks.
struct Layer {
  const SafetensorsFile& file;
  ModelConfig model;
  std::vector<ParameterSpec> specs;
  Tensor x, cotangent;
};

Tensor read_checked(const SafetensorsFile& file, const std::string& name, const Shape& shape) {
  Tensor t = file.read(name);
  if (t.shape() != shape || t.dtype() != DType::f32) {
    fail_usage("[verify] {}: expected {} float32 {} for its config, got {} {}", file.path(), name,
               to_string(shape), name_of(t.dtype()), to_string(t.shape()));
  }
  return t;
}

MoeWeights weights_of(Context& context, const ModelConfig& model, const Parameters& parameters) {
  MoeWeights w;
  const std::string prefix = fmt::format("layers.{}.moe.", first_moe_layer(model));
  auto in_use = [&](const char* name) {
    return never_save(cast(context, parameters.on_device(context, prefix + name), model.dtype));
  };
  w.gate.weight = parameters.on_device(context, prefix + "gate");
  if (model.moe().bias) w.gate_bias = parameters.on_device(context, prefix + "gate_bias");
  w.wi_0.weight = in_use("wi_0");
  w.wi_1.weight = in_use("wi_1");
  w.wo.weight = in_use("wo");
  return w;
}

// The file's forced_routed_experts in place of the router's choice; -1 there is a slot without an expert.
class StoredChoices : public RoutingTape {
 public:
  explicit StoredChoices(const SafetensorsFile& file) : choices_(file.read("forced_routed_experts")) {
    for (std::int32_t& id : choices_.span<std::int32_t>()) id = id < 0 ? kUnusedChoice : id;
  }
  Tensor replay(const Context& context, std::int64_t, std::int64_t, std::int64_t,
                const ArrayInfo& logits) override {
    return block_of(context, choices_, Sharding{{logits.sharding.dims[0], logits.sharding.dims[1], {}}, {}});
  }
  void record(Context&, std::int64_t, std::int64_t, std::int64_t, const Array&, const Array&,
              const Routing&) override {}

 private:
  Tensor choices_;
};

// Forward and backward of the layer on one rank. `rows` gets this rank's rows per expert.
void run_layer(Context& context, const Layer& layer, Gather& gather, std::vector<double>& rows) {
  const ModelConfig& model = layer.model;
  auto fill = [&](const ParameterSpec& spec) { return layer.file.read(file_names().at(below(spec.name))); };
  const Parameters parameters = Parameters::create(context, layer.specs, model.init_seed, fill, nullptr);
  const Shape& shape = layer.x.shape();
  const Sharding layout = block_sharding(*context.rules, shape), tokens{{layout.dims[0], layout.dims[1]}, {}};
  const Array x = make_leaf(block_of(context, layer.x, layout), shape, layout, true);
  Tensor ones(DType::i32, local_shape(*context.mesh, {shape[0], shape[1]}, tokens));
  std::fill_n(ones.data<std::int32_t>(), ones.size(), 1);
  const Array segments = make_leaf(to_device(context.memory, ones), {shape[0], shape[1]}, tokens, false);

  MoeExecution execution = model.moe_execution;
  if (layer.file.contains("forced_routed_experts"))
    execution.tape = std::make_shared<StoredChoices>(layer.file);
  MoeOutput out = moe_block(context, model.moe(), execution, weights_of(context, model, parameters),
                            cast(context, x, model.dtype), segments, 0, first_moe_layer(model));
  read_loads(context, std::span(&out.load, 1));
  rows = out.load.rows;
  const Array y = cast(context, out.y, DType::f32);
  gather.put(context, "y", y);
  gather.put(context, "logits", out.logits);
  gather.put(context, "topk_indices", out.routing.ids);
  gather.put(context, "topk_weights", out.routing.weights);
  std::vector<Array> roots{y};
  std::vector<Tensor> cotangents{cotangent_block(context, layer.cotangent, y.sharding())};
  if (out.balance_loss.defined()) {
    gather.put(context, "lb_loss", out.balance_loss);
    const float one = 1;
    roots.push_back(out.balance_loss);
    cotangents.push_back(
        cotangent_block(context, Tensor::of<float>({}, std::span(&one, 1)), out.balance_loss.sharding()));
  }
  backward(context, roots, cotangents);
  gather.put_gradient(context, "grad.x", x);
  for (const auto& p : parameters.all())
    gather.put_gradient(context, "grad." + file_names().at(below(p.spec.name)), p.array);
}

// Returns the scores as the reference's gate returns them, with the bias added.
Tensor gate_scores(const Layer& layer, const Tensor& logits) {
  Tensor scores = logits.clone();
  const auto experts = static_cast<std::size_t>(layer.model.moe().experts);
  const Tensor bias = layer.model.moe().bias ? layer.file.read("bias") : Tensor();
  const std::span<float> all = scores.span<float>();
  for (std::size_t i = 0; i < all.size(); i += experts) {
    const auto row = all.subspan(i, experts);
    const std::vector<float> values(row.begin(), row.end());
    router_scores(layer.model.moe().score, values, row);
    for (std::size_t e = 0; e < experts && bias.defined(); ++e) row[e] += bias.data<float>()[e];
  }
  return scores;
}

bool is_of_2026_08(const SafetensorsFile& file) {
  return !file.metadata().contains("maxtext_version");
}

// The file whose balance loss and bias update count: with ragged all-to-all the reference stores one shard's
// loss, and in August 2026 one shard's update, so the one-device file of the same model is taken.
SafetensorsFile statistics_of(const SafetensorsFile& file) {
  if (!file.contains("lb_loss") && !file.contains("bias_update")) return file;
  const std::filesystem::path path = file.path();
  const std::string name = path.filename();
  const std::size_t at = name.find("_ragged_a2a_");
  return at == std::string::npos
             ? file
             : SafetensorsFile::open(path.parent_path() / (name.substr(0, at) + "_sparse_aux.safetensors"));
}

void check_names(const Layer& layer) {
  std::set<std::string> known{
      "x",       "cotangent",   "y",      "gate_scores",          "topk_indices", "topk_weights",
      "lb_loss", "bias_update", "grad.x", "forced_routed_experts"};
  for (const auto& spec : layer.specs) {
    known.insert(file_names().at(below(spec.name)));
    known.insert("grad." + file_names().at(below(spec.name)));
  }
  for (const auto& item : layer.file.entries()) {
    if (!known.contains(item.first))
      fail_usage("[verify] {}: tensor {} is not one of this layer's", layer.file.path(),
                 in_quotes(item.first));
  }
}

void compare_layer(const CaseRequest& request, const Layer& layer, Gather& gather,
                   const std::vector<double>& rows, CaseReport& report) {
  const SafetensorsFile& file = layer.file;
  const SafetensorsFile statistics = statistics_of(file);
  const double tolerance =
      request.tolerance.value_or(layer.model.dtype == DType::bf16 ? kBfloat16Tolerance : kDefaultTolerance);
  const std::string name_of_case = std::filesystem::path(file.path()).filename();
  const bool rounded = is_of_2026_08(file) && name_of_case.find("_ring_ragged_sort_") != std::string::npos;
  auto compare = [&](const std::string& name, const Tensor& got, double allowed,
                     const SafetensorsFile& from) {
    if (from.contains(name)) report.compare({name, "", "", {}, allowed}, got, from.read(name));
  };
  compare("gate_scores", gate_scores(layer, gather.whole("logits")), tolerance, file);
  compare("topk_indices", gather.whole("topk_indices"), 0, file);
  compare("topk_weights", gather.whole("topk_weights"), tolerance, file);
  report.compare({"y", "", "", {}, rounded ? std::max(tolerance, kRoundedTolerance) : tolerance},
                 gather.whole("y"), file.read("y"));
  if (gather.contains("lb_loss")) compare("lb_loss", gather.whole("lb_loss"), tolerance, statistics);
  if (layer.model.bias_update_rate > 0) {
    const auto update = bias_increment(rows, layer.model.bias_update_rate);
    compare("bias_update", Tensor::of<float>({layer.model.moe().experts}, std::span(update)), tolerance,
            statistics);
  }
  compare("grad.x", gather.whole("grad.x"), tolerance, file);
  for (const auto& spec : layer.specs) {
    const std::string name = "grad." + file_names().at(below(spec.name));
    compare(name, gather.whole(name), tolerance, file);
  }
  report_disagreements(gather, report);
}

}  // namespace

CaseReport verify_moe_layer(const CaseRequest& request) {
  CaseReport report{request.path, "MoE layer", "", {}, {}, ""};
  const SafetensorsFile file = SafetensorsFile::open(request.path);
  if (!file.metadata().contains("config") || !file.contains("x")) {
    fail_usage(
        "[verify] {}: expected a MoE-layer file, with tensor x and metadata config; a run is given by its "
        ".json, a model by its folder",
        request.path);
  }
  std::map<std::string, nlohmann::json> keys =
      parse_json(file.metadata().at("config"), request.path + " config");
  if (keys.contains("expert_parallelism")) keys["ranks"] = keys["expert_parallelism"];
  keys["compat"] = is_of_2026_08(file) ? std::string(kCompat202608) : "maxtext";
  const Tensor x = file.read("x");
  if (x.rank() != 3 || x.size() == 0)
    fail_usage("[verify] {}: expected x [B,S,M], got {}", request.path, to_string(x.shape()));
  const Config config = case_config(std::move(keys), request, x.dim(0), x.dim(1), report);
  const ModelConfig model = model_config(config);
  if (model.moe_layers().empty()) fail_usage("[verify] {}: its config has no MoE layer", request.path);
  const Shape shape{x.dim(0), x.dim(1), model.emb};
  const Layer layer{file, model, layer_specs(model), read_checked(file, "x", shape),
                    read_checked(file, "cotangent", shape)};
  for (const auto& spec : layer.specs) read_checked(file, file_names().at(below(spec.name)), spec.shape);
  check_names(layer);

  const Mesh mesh = mesh_from_config(config);
  if (mesh.axis_size("stage") > 1)
    fail_usage("[verify] {}: one layer makes no pipeline; set ici_pipeline_parallelism=1", request.path);
  report.mesh = mesh.to_string();
  Gather gather(mesh);
  std::vector<std::vector<double>> rows(static_cast<std::size_t>(mesh.size()));
  run_session(config, mesh, [&](Context& context) {
    run_layer(context, layer, gather, rows[static_cast<std::size_t>(context.rank)]);
  });
  std::vector<double> all(static_cast<std::size_t>(model.moe().experts), 0.0);
  for (const auto& of_rank : rows)
    std::transform(of_rank.begin(), of_rank.end(), all.begin(), all.begin(), std::plus<>());
  compare_layer(request, layer, gather, all, report);
  return report;
}

}  // namespace switchyard

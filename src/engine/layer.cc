#include "switchyard/layer.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "autograd/op.h"
#include "core/error.h"
#include "engine/engine_impl.h"
#include "engine/rank_loop.h"
#include "engine/session.h"
#include "engine/whole_tensors.h"
#include "kernels/pointwise/elementwise.h"
#include "models/decoder_layer.h"
#include "models/families/lora_keys.h"
#include "models/packed_parameters.h"
#include "ops/basic.h"
#include "routing/routing_keys.h"

namespace switchyard {
namespace {

constexpr std::uintptr_t kAlignment = 64;  // of a Buffer

DType dtype_of_array(const FloatArray& array) {
  return array.type == FloatType::float32 ? DType::f32 : DType::bf16;
}

// The array as a tensor: its own memory, or an aligned copy.
Tensor tensor_of(const char* what, const std::string& name, const FloatArray& array, const Shape& shape) {
  const DType dtype = dtype_of_array(array);
  if (array.data == nullptr || Shape(array.shape.begin(), array.shape.end()) != shape)
    fail_usage("[layer] {}: expected {} {}, got {}", what, name, to_string(shape),
               array.data == nullptr ? "no array" : to_string(Shape(array.shape.begin(), array.shape.end())));
  const auto bytes = static_cast<std::size_t>(num_elements(shape)) * size_of(dtype);
  const std::span memory(static_cast<const std::byte*>(array.data), bytes);
  if (reinterpret_cast<std::uintptr_t>(array.data) % kAlignment != 0) {
    const Tensor copied(dtype, shape);
    std::ranges::copy(memory, copied.raw());
    return copied;
  }
  const auto nobody = [](const void*) {};
  const std::shared_ptr<const void> owner =
      array.owner != nullptr ? array.owner : std::shared_ptr<const void>(array.data, nobody);
  return {dtype, shape, std::make_shared<Buffer>(owner, memory)};
}

FloatArray array_of(const Tensor& tensor) {
  return {.type = tensor.dtype() == DType::f32 ? FloatType::float32 : FloatType::bfloat16,
          .shape = {tensor.shape().begin(), tensor.shape().end()},
          .data = tensor.raw(),
          .owner = tensor.buffer()};
}

// The graph's root without its data, which is the caller's.
Array without_data(const Array& array) {
  return array.defined() ? Array(array.value(), Tensor()) : Array();
}

void refuse_what_a_layer_lacks(const Config& config) {
  for (const char* key : {"load_parameters_path", "load_full_state_path", "adapter"}) {
    if (!config.is_none(key))
      fail_usage("[layer] {}={}: a layer's weights are its caller's; name the model by model_name", key,
                 config.get_string(key));
  }
  for (const char* key : {"routing_record", "routing_replay"})
    refuse_routing_key(config, key, "the program's commands");
  if (trains_adapter(config)) fail_usage("[layer] lora_rank: a layer has no adapters; leave its keys out");
  if (const std::string& format = config.get_string("weight_format"); format != "stored" && format != "dense")
    fail_usage("[layer] weight_format={}: a layer's weights are float32 or bfloat16", format);
  if (config.get_string("device") != "cpu")
    fail_usage("[layer] device={}: a layer runs on the CPU; set device=cpu", config.get_string("device"));
  if (config.get_bool("use_random_routing"))
    fail_usage("[layer] use_random_routing=true: a layer has no steps to draw for; set it to false");
  if (config.get_float("routed_bias_update_rate") > 0)
    fail_usage("[layer] routed_bias_update_rate={}: a layer updates no weights; set it to 0",
               config.get_float("routed_bias_update_rate"));
}

ModelConfig in_type(ModelConfig model, DType dtype) {
  model.dtype = dtype;
  return model;
}

// The first MoE layer's number.
std::int64_t layer_in(const ModelConfig& model) {
  const std::vector<std::int64_t> layers = model.moe_layers();
  if (layers.empty()) fail_usage("[layer] the model has no MoE layer; expected num_experts above 1");
  if (model.latent_experts) fail_usage("[layer] the model's experts read attention's latent, not x");
  return layers.front();
}

}  // namespace

// Arrays of one forward on one rank: leaves, and roots without data.
struct RankGraph {
  std::vector<Array> leaves;  // x, then each weight
  Array y, balance_loss;
};

struct MoeLayer::Kept::Graph {
  const void* layer = nullptr;  // the Impl that made it
  std::vector<bool> recorded;   // of the leaves
  std::vector<RankGraph> ranks;
};

MoeLayer::Kept::Kept() = default;
MoeLayer::Kept::Kept(Kept&&) noexcept = default;
MoeLayer::Kept& MoeLayer::Kept::operator=(Kept&&) noexcept = default;
MoeLayer::Kept::~Kept() = default;

struct MoeLayer::Impl {
  explicit Impl(const Config& of);

  struct Inputs {
    Tensor x, segments;
    std::vector<Tensor> weights;
    const std::vector<bool>& differentiated;
  };

  const ModelConfig& model_in(DType dtype) const { return dtype == DType::f32 ? in_f32 : in_bf16; }
  void check_x(const FloatArray& x) const;
  Tensor segments_of(const Shape& x, std::span<const std::int32_t> given) const;
  // Forward and backward on one rank. The results go to `whole`s, which the ranks share.
  Tensor run(Context& context, const Inputs& inputs, RankGraph& graph, double& balance_loss,
             const Tensor& y) const;
  void go_back(Context& context, RankGraph& graph, const Tensor& dy, double dloss,
               const std::vector<bool>& wanted, std::vector<Tensor>& wholes) const;

  const Config config;
  const Mesh mesh;
  const ModelConfig in_f32, in_bf16;
  const std::int64_t layer;
  const std::string prefix;
  std::vector<ParameterSpec> specs;
  std::vector<LayerWeight> weights;
  const std::unique_ptr<Processes> processes = one_process();
  std::optional<RankLoop> loop;  // ends first
};

MoeLayer::Impl::Impl(const Config& of)
    : config((refuse_what_a_layer_lacks(of), of)),
      mesh(mesh_from_config(config)),
      in_f32(in_type(model_config(config), DType::f32)),
      in_bf16(in_type(in_f32, DType::bf16)),
      layer(layer_in(in_f32)),
      prefix(fmt::format("layers.{}.", layer)) {
  if (mesh.axis_size("stage") > 1)
    fail_usage("[layer] one layer makes no pipeline; set ici_pipeline_parallelism=1");
  const std::string own = prefix + "moe.";
  for (ParameterSpec& spec : parameter_specs(in_f32)) {
    if (!spec.name.starts_with(own)) continue;
    const bool zeros = spec.initializer == Initializer::zeros;
    weights.push_back({.name = spec.name.substr(own.size()),
                       .shape = {spec.shape.begin(), spec.shape.end()},
                       .deviation = zeros ? 0 : spec.deviation,
                       .trained = spec.trained});
    specs.push_back(std::move(spec));
  }
  require_ranks_fit(mesh, *processes);
  loop.emplace(config, mesh, *processes, [](Context&) {});
}

void MoeLayer::Impl::check_x(const FloatArray& x) const {
  const Shape shape(x.shape.begin(), x.shape.end());
  if (x.data == nullptr || shape.size() != 3 || num_elements(shape) == 0 || shape[2] != in_f32.emb)
    fail_usage("[layer] forward: expected x [B,S,M] with M = {} and a token at least, got {}", in_f32.emb,
               to_string(shape));
  if (config.is_set_by_user("dtype") && config.get_string("dtype") != name_of(dtype_of_array(x)))
    fail_usage("[layer] forward: expected x in {}, as dtype says, got {}", config.get_string("dtype"),
               name_of(dtype_of_array(x)));
  const Mesh own = stage_mesh(mesh);
  const AxisRules rules(config.axis_rules(), own);
  check_chunks(in_f32.moe_execution, local_shape(own, shape, block_sharding(rules, shape))[1],
               in_f32.moe_emb);
}

Tensor MoeLayer::Impl::segments_of(const Shape& x, std::span<const std::int32_t> given) const {
  const Tensor segments(DType::i32, {x[0], x[1]});
  if (!given.empty() && std::ssize(given) != segments.size())
    fail_usage("[layer] forward: expected {} segments, one for each token, got {}", segments.size(),
               given.size());
  if (given.empty())
    std::ranges::fill(segments.span<std::int32_t>(), 1);
  else
    std::ranges::copy(given, segments.data<std::int32_t>());
  return segments;
}

Tensor MoeLayer::Impl::run(Context& context, const Inputs& inputs, RankGraph& graph, double& balance_loss,
                           const Tensor& y) const {
  const ModelConfig& model = model_in(inputs.x.dtype());
  const bool any = std::ranges::find(inputs.differentiated, true) != inputs.differentiated.end();
  std::optional<NoGrad> no_grad;
  if (!any) no_grad.emplace(context);
  const Shape& shape = inputs.x.shape();
  const Sharding layout = block_sharding(*context.rules, shape), tokens{{layout.dims[0], layout.dims[1]}, {}};
  const Array x =
      make_leaf(block_of(context, inputs.x, layout), shape, layout, any && inputs.differentiated[0]);
  const Array segments =
      make_leaf(block_of(context, inputs.segments, tokens), inputs.segments.shape(), tokens, false);
  std::vector<Parameter> made;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const Sharding sharding = context.rules->resolve(specs[i].dims, specs[i].shape).sharding;
    Array weight = never_save(make_leaf(block_of(context, inputs.weights[i], sharding), specs[i].shape,
                                        sharding, any && inputs.differentiated[i + 1]));
    weight.value()->weight = true;
    made.push_back({specs[i], std::move(weight)});
  }
  const Parameters parameters = Parameters::of(std::move(made));
  const RopeTables none;
  const LayerCall call{.context = context,
                       .model = model,
                       .parameters = parameters,
                       .prefix = prefix,
                       .layer = model.layer(layer),
                       .rope = none,
                       .growth = none,
                       .segments = segments};
  MoeOutput out = moe_block(context, model.moe_of(call.layer), model.moe_execution, moe_weights(call), x,
                            segments, 0, layer);
  if (model.shared_experts > 0) out.y = add(context, out.y, shared_experts(call, x));
  if (context.comm->rank() == 0 && out.balance_loss.defined())
    balance_loss = *out.balance_loss.tensor().data<float>();
  if (any) {
    graph.leaves = {x};
    for (const Parameter& p : parameters.all()) graph.leaves.push_back(p.array);
    graph.y = without_data(out.y);
    graph.balance_loss = without_data(out.balance_loss);
  }
  const Sharding sharding = out.y.sharding();
  Tensor block = out.y.tensor();
  out = {};
  return whole_of(context, std::move(block), shape, sharding, y);
}

void MoeLayer::Impl::go_back(Context& context, RankGraph& graph, const Tensor& dy, double dloss,
                             const std::vector<bool>& wanted, std::vector<Tensor>& wholes) const {
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    Value& leaf = *graph.leaves[i].value();
    leaf.requires_grad = leaf.requires_grad && wanted[i];
  }
  std::vector<Array> roots;
  std::vector<Tensor> cotangents;
  if (dy.defined() && graph.y.value()->requires_grad) {
    roots.push_back(graph.y);
    cotangents.push_back(cotangent_block(context, dy, graph.y.sharding()));
  }
  if (dloss != 0 && graph.balance_loss.defined() && graph.balance_loss.value()->requires_grad) {
    const auto given = static_cast<float>(dloss);
    roots.push_back(graph.balance_loss);
    cotangents.push_back(
        cotangent_block(context, Tensor::of<float>({}, std::span(&given, 1)), graph.balance_loss.sharding()));
  }
  switchyard::backward(context, roots, cotangents);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (!wanted[i]) continue;
    Value& leaf = *graph.leaves[i].value();
    Tensor gradient = std::exchange(leaf.grad, {});
    if (!gradient.defined()) gradient = context.zeros(leaf.info.dtype, leaf.info.local);
    gradient = converted(*context.pool, std::exchange(gradient, {}), leaf.info.dtype);
    const Tensor whole = whole_of(context, std::move(gradient), leaf.info.shape,
                                  dual(*context.mesh, leaf.info.sharding), wholes[i]);
    if (context.comm->size() == 1) wholes[i] = whole;  // of several ranks, all write to the one that is there
  }
}

MoeLayer::MoeLayer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
MoeLayer::MoeLayer(MoeLayer&&) noexcept = default;
MoeLayer::~MoeLayer() = default;

MoeLayer MoeLayer::open(const Settings& settings) {
  return MoeLayer(std::make_unique<Impl>(settings.checked().config));
}

const std::vector<LayerWeight>& MoeLayer::weights() const {
  return impl_->weights;
}
std::int64_t MoeLayer::width() const {
  return impl_->in_f32.emb;
}

MoeLayer::Result MoeLayer::forward(const FloatArray& x, std::span<const FloatArray> weights,
                                   const std::vector<bool>& differentiated,
                                   std::span<const std::int32_t> segments) const {
  Impl& own = *impl_;
  own.check_x(x);
  if (weights.size() != own.specs.size() ||
      (!differentiated.empty() && differentiated.size() != own.specs.size() + 1))
    fail_usage("[layer] forward: expected {} weights, and `differentiated` of x and each, got {} and {}",
               own.specs.size(), weights.size(), differentiated.size());
  const Shape shape(x.shape.begin(), x.shape.end());
  Impl::Inputs inputs{
      tensor_of("forward", "x", x, shape), own.segments_of(shape, segments), {}, differentiated};
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const std::string& name = own.weights[i].name;
    inputs.weights.push_back(tensor_of("forward", name, weights[i], own.specs[i].shape));
    if (name == "gate_bias" && weights[i].type != FloatType::float32)
      fail_usage("[layer] forward: expected gate_bias in float32, got bfloat16");
  }
  const int ranks = own.mesh.size();
  auto graph = std::make_unique<Kept::Graph>();
  graph->layer = &own;
  graph->recorded = differentiated;
  graph->ranks.resize(static_cast<std::size_t>(ranks));
  const Tensor shared = ranks > 1 ? Tensor(inputs.x.dtype(), shape) : Tensor();
  Result result;
  own.loop->run([&](Context& context) {
    const int rank = context.comm->rank();
    const Tensor y =
        own.run(context, inputs, graph->ranks[static_cast<std::size_t>(rank)], result.balance_loss, shared);
    if (rank == 0) result.y = array_of(y);
  });
  if (std::ranges::find(differentiated, true) != differentiated.end()) result.kept.graph_ = std::move(graph);
  return result;
}

std::vector<FloatArray> MoeLayer::backward(Kept kept, const FloatArray& dy, double dloss,
                                           const std::vector<bool>& wanted) const {
  Impl& own = *impl_;
  if (kept.empty())
    fail_usage("[layer] backward: what the forward kept is gone; each backward needs a forward");
  Kept::Graph& graph = *kept.graph_;
  if (graph.layer != &own) fail_usage("[layer] backward: another layer made that forward");
  if (wanted.size() != graph.recorded.size())
    fail_usage("[layer] backward: expected `wanted` of {} arrays, got {}", graph.recorded.size(),
               wanted.size());
  const Shape& shape = graph.ranks[0].y.shape();
  const DType dtype = graph.ranks[0].y.dtype();
  const Tensor cotangent = dy.data == nullptr ? Tensor() : tensor_of("backward", "dy", dy, shape);
  if (cotangent.defined() && cotangent.dtype() != dtype)
    fail_usage("[layer] backward: expected dy in {}, as y, got {}", name_of(dtype),
               name_of(cotangent.dtype()));
  std::vector<Tensor> wholes(wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i] && !graph.recorded[i])
      fail_usage("[layer] backward: array {} was not differentiated in its forward", i);
    const ArrayInfo& info = graph.ranks[0].leaves[i].info();
    if (wanted[i] && own.mesh.size() > 1) wholes[i] = Tensor(info.dtype, info.shape);
  }
  own.loop->run([&](Context& context) {
    own.go_back(context, graph.ranks[static_cast<std::size_t>(context.comm->rank())], cotangent, dloss,
                wanted, wholes);
  });
  std::vector<FloatArray> gradients;
  for (std::size_t i = 0; i < wanted.size(); ++i)
    gradients.push_back(wanted[i] ? array_of(wholes[i]) : FloatArray());
  return gradients;
}

}  // namespace switchyard

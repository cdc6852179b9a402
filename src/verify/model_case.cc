#include "verify/model_case.h"

#include <cmath>
#include <limits>
#include <map>
#include <optional>

#include "autograd/op.h"
#include "core/error.h"
#include "models/blocks/layers.h"
#include "models/pipeline.h"
#include "ops/basic.h"

namespace switchyard {
namespace {

Tensor scaled(const Tensor& x, float by) {
  if (by == 1.0f) return x;
  Tensor result = x.cast(DType::f32).clone();
  for (float& v : result.span<float>()) v *= by;
  return result;
}

}  // namespace

HubModel::HubModel(ModelConfig model, const ModelFamily& family, nlohmann::json hub_config,
                   std::shared_ptr<const HubWeights> weights)
    : model_(std::move(model)),
      family_(family),
      hub_config_(std::move(hub_config)),
      weights_(std::move(weights)),
      specs_(parameter_specs(model_)) {
  std::map<std::string, Shape> shapes;
  for (const auto& spec : specs_) shapes[spec.name] = spec.shape;
  check_hub_tensors(*weights_, family_, shapes, model_.layers);
}

float HubModel::factor(const ParameterSpec& spec) const {
  return static_cast<float>(1 / held_factor(model_, spec.name));
}

Parameters::FillBlock HubModel::fill() const {
  return blocks_of([this](const ParameterSpec& spec) {
    return scaled(load_from_hub(*weights_, family_, spec.name, spec.shape), 1 / factor(spec));
  });
}

std::vector<std::string> HubModel::hub_names(const ParameterSpec& spec) const {
  return hub_tensors(family_, spec.name, spec.shape).names;
}

std::vector<Tensor> HubModel::to_hub_scaled(const ParameterSpec& spec, const Tensor& ours, float by) const {
  return to_hub(hub_tensors(family_, spec.name, spec.shape), scaled(ours, by));
}

std::vector<Tensor> HubModel::weights_to_hub(const ParameterSpec& spec, const Tensor& ours) const {
  return to_hub_scaled(spec, ours, factor(spec));
}

std::vector<Tensor> HubModel::gradients_to_hub(const ParameterSpec& spec, const Tensor& ours) const {
  return to_hub_scaled(spec, ours, 1 / factor(spec));
}

void gather_pass(Context& context, const ModelConfig& model, const Parameters& parameters, const Batch& batch,
                 Gather& gather, const std::function<void(const Parameters&)>& on_gradients, bool backward) {
  LossOptions options;
  options.target_count = count_targets(batch);
  options.further_count = count_further_targets(batch, model.predictions);
  for (double* const count : {&options.target_count, &options.further_count}) {
    if (model.compat || *count == 0) *count += 1e-8;
  }
  options.keep_hidden = options.keep_logits = true;
  std::map<std::string, Array> losses;  // of all blocks of this stage
  const auto keep_loss = [&](const char* name, const Array& loss) {
    if (!loss.defined()) return;
    const NoGrad no_grad(context);
    Array& sum = losses[name];
    sum = sum.defined() ? add(context, sum, loss) : loss;
  };
  const auto run_stage = [&](const PipelinePass& pass, const Array& input) {
    options.block = pass.block;
    options.input = input;
    const Losses out =
        training_losses(context, model, parameters, place_batch(context, batch, model.predictions), options);
    const Stage::Block block = context.stage.block(pass.block);
    std::int64_t at = block.is_first() ? 0 : layers_of(block, model.layers).begin + 1;
    for (const Array& hidden : out.hidden) gather.put(context, fmt::format("hidden.{}", at++), hidden);
    const std::int64_t first = layers_of(block, model.layers).begin;
    for (std::size_t i = 0; i < out.chosen_keys.size(); ++i) {
      if (out.chosen_keys[i].defined())
        gather.put(context, fmt::format("indexer.{}.keys", first + static_cast<std::int64_t>(i)),
                   out.chosen_keys[i]);
    }
    for (std::size_t i = 0; i < out.routing.size(); ++i) {
      const std::string name = fmt::format("router.{}.", out.loads[i].layer);
      gather.put(context, name + "indices", out.routing[i].ids);
      gather.put(context, name + "weights", out.routing[i].weights);
    }
    if (out.logits.defined()) gather.put(context, "logits", out.logits);
    keep_loss("loss", out.loss);
    keep_loss("prediction_loss", out.prediction_loss);
    keep_loss("balance_loss", out.balance_loss);
    keep_loss("indexer_loss", out.indexer_loss);
    return StageOutput{out.output, out.loss};
  };
  const Shape shape{batch.inputs.dim(0), batch.inputs.dim(1), model.emb};
  std::optional<NoGrad> no_grad;
  if (!backward) no_grad.emplace(context);
  Pipeline pipeline(context, PipelineSchedule::one_forward_one_backward, model.dtype, shape,
                    block_sharding(*context.rules, shape));
  if (backward)
    pipeline.train(1, run_stage, [](const std::function<void()>& go_back) { go_back(); });
  else
    pipeline.evaluate(run_stage);
  for (const auto& [name, loss] : losses) gather.put(context, name, loss);
  if (!backward) return;
  if (on_gradients) on_gradients(parameters);
  for (const auto& p : parameters.all()) gather.put_gradient(context, "grad." + p.spec.name, p.array);
}

void gather_weights(Trainer& trainer, Gather& gather) {
  for (const Parameter& p : trainer.parameters().all()) {
    const bool is_again = p.spec.on_both_ends && !trainer.context().stage.is_first();
    if (!is_again) gather.put(trainer.context(), "final." + p.spec.name, p.array);
  }
}

std::vector<Tensor> router_biases(Trainer& trainer) {
  std::vector<Tensor> biases;
  const ModelConfig& model = trainer.model();
  Context& context = trainer.context();
  if (!model.moe().bias) return biases;
  for (const std::int64_t i : model.moe_layers()) {
    const std::string name = fmt::format("layers.{}.moe.gate_bias", i);
    const bool here = trainer.parameters().contains(name);
    const Tensor bias =
        here ? trainer.parameters()[name].tensor().clone() : context.zeros(DType::f32, {model.moe().experts});
    if (context.stage.count > 1) context.comm->all_reduce(context.stage.across, bias.view());
    biases.push_back(to_host(bias));
  }
  return biases;
}

std::string place_of(const std::string& parameter) {
  const std::int64_t layer = layer_of(parameter);
  return layer < 0 ? "" : fmt::format("layer {}", layer);
}

void report_disagreements(const Gather& gather, CaseReport& report) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const std::string& name : gather.disagreements()) {
    report.rows.push_back({name + " equal on all ranks", "", "", {nan, nan}, 0, true});
  }
}

}  // namespace switchyard

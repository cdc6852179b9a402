// What the two kinds of whole-model cases share: weights under hub names, and one forward and backward pass.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/model.h"
#include "models/decoder.h"
#include "models/families/hub_tensors.h"
#include "models/parameters.h"
#include "train/trainer.h"
#include "verify/gather.h"
#include "verify/report.h"

namespace switchyard {

// A model and its weights under hub names.
class HubModel {
 public:
  // Checks that the tensors of `weights` (a folder or one file) are those of the model, which `hub_config`, a
  // config.json, describes; Error(usage) otherwise.
  HubModel(ModelConfig model, const ModelFamily& family, const nlohmann::json& hub_config,
           const std::string& weights);

  const ModelConfig& model() const { return model_; }
  const ModelFamily& family() const { return family_; }
  const nlohmann::json& hub_config() const { return hub_config_; }
  const std::vector<ParameterSpec>& specs() const { return specs_; }
  // Our form of the weights. This object must live as long.
  Parameters::FillBlock fill() const;

  // A whole parameter, or its gradient, as hub tensors, in the order of hub_names().
  std::vector<std::string> hub_names(const ParameterSpec& spec) const;
  std::vector<Tensor> weights_to_hub(const ParameterSpec& spec, const Tensor& ours) const;
  std::vector<Tensor> gradients_to_hub(const ParameterSpec& spec, const Tensor& ours) const;

 private:
  // hub = ours · factor: under compat=maxtext our query holds 1/√head_dim, which the hub's does not.
  float factor(const ParameterSpec& spec) const;
  std::vector<Tensor> to_hub_scaled(const ParameterSpec& spec, const Tensor& ours, float by) const;

  ModelConfig model_;
  const ModelFamily& family_;
  nlohmann::json hub_config_;
  std::shared_ptr<const HubWeights> folder_;
  std::vector<ParameterSpec> specs_;
};

// One forward and backward pass. Puts in: hidden.<i>, logits, loss, balance_loss where there is one,
// router.<layer>.indices and .weights, and grad.<our name>. `on_gradients` may change this rank's gradients.
void gather_pass(Context& context, const ModelConfig& model, const Parameters& parameters, const Batch& batch,
                 Gather& gather, const std::function<void(const Parameters&)>& on_gradients = nullptr);

// Puts in final.<our name>: the weights, once where two stages hold them.
void gather_weights(Trainer& trainer, Gather& gather);

// The router's bias of each MoE layer; empty for a model without. Collective.
std::vector<Tensor> router_biases(Trainer& trainer);

// "layer 3" for `layers.3.…`, else empty.
std::string place_of(const std::string& parameter);

// A failing row for each tensor of which ranks held different bits where they should agree.
void report_disagreements(const Gather& gather, CaseReport& report);

}  // namespace switchyard

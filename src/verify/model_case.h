// Code that the two kinds of whole-model cases share: weights under hub names, and one training pass.
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

// A model and its weights under Hugging Face names.
class HubModel {
 public:
  // Error(usage) unless the tensors of `weights` are those of the model in `hub_config`, a config.json.
  HubModel(ModelConfig model, const ModelFamily& family, nlohmann::json hub_config,
           std::shared_ptr<const HubWeights> weights);

  const ModelConfig& model() const { return model_; }
  const ModelFamily& family() const { return family_; }
  const nlohmann::json& hub_config() const { return hub_config_; }
  const std::vector<ParameterSpec>& specs() const { return specs_; }
  // Reads weights in our form. This object must outlive the function.
  Parameters::FillBlock fill() const;

  // Hub names of a parameter, and its value or gradient as hub tensors in the order of hub_names().
  std::vector<std::string> hub_names(const ParameterSpec& spec) const;
  std::vector<Tensor> weights_to_hub(const ParameterSpec& spec, const Tensor& ours) const;
  std::vector<Tensor> gradients_to_hub(const ParameterSpec& spec, const Tensor& ours) const;

 private:
  // hub = ours · factor: under compat=maxtext our query includes 1/√head_dim, the hub's does not.
  float factor(const ParameterSpec& spec) const;
  std::vector<Tensor> to_hub_scaled(const ParameterSpec& spec, const Tensor& ours, float by) const;

  ModelConfig model_;
  const ModelFamily& family_;
  nlohmann::json hub_config_;
  std::shared_ptr<const HubWeights> weights_;
  std::vector<ParameterSpec> specs_;
};

// Runs one forward and backward pass. Puts in hidden.<i>, logits, loss, balance_loss if any,
// router.<layer>.indices and .weights, and grad.<our name>. `on_gradients` may change this rank's gradients.
// `backward` false: only the forward pass, and no gradients.
void gather_pass(Context& context, const ModelConfig& model, const Parameters& parameters, const Batch& batch,
                 Gather& gather, const std::function<void(const Parameters&)>& on_gradients = nullptr,
                 bool backward = true);

// Puts in the weights as final.<our name>, once when two stages hold them.
void gather_weights(Trainer& trainer, Gather& gather);

// The router's bias of each MoE layer; empty for a model without such biases. Collective.
std::vector<Tensor> router_biases(Trainer& trainer);

// Returns "layer 3" for `layers.3.…`, else an empty text.
std::string place_of(const std::string& parameter);

// Adds a failing row for each tensor whose bits differ between ranks that should agree.
void report_disagreements(const Gather& gather, CaseReport& report);

}  // namespace switchyard

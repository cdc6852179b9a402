// Turns config keys into a model's description and how it runs. Keys become numbers here and nowhere else.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "config/config.h"
#include "config/decoder_block.h"
#include "core/dtype.h"
#include "models/adapter.h"
#include "models/architecture.h"

namespace switchyard {

// How a model is run and trained. No field here changes which function the model is.
struct Execution {
  DType dtype = DType::f32;         // dtype of activations and of weights in use
  DType weight_dtype = DType::f32;  // dtype of stored weights
  bool int8_cache = false;          // generation caches keys and values in 8 bits
  // A sequence split over ranks is dealt out so that causal attention costs every rank the same.
  bool balanced_context = true;
  std::int64_t delta_chunk = 64;  // tokens in one chunk of a gated delta net's products
  MoeExecution moe_execution;
  bool remat = true;
  std::set<std::string> remat_keeps;       // names of checkpoints that remat keeps
  std::set<std::string> remat_offloads;    // checkpoint names, and the layers' inputs, that move to the host
  std::vector<std::string> trainable;      // trainable_parameters_mask; empty: all parameters are trained
  std::vector<std::string> weight_places;  // and .*=host last with parameter_memory_host_offload
  double z_loss = 0;
  double prediction_loss = 0;   // mtp_loss_scaling_factor
  double indexer_loss = 0;      // indexer_loss_scaling_factor; 0: the indexer is not trained
  bool indexer_sparse = false;  // indexer_sparse_training; else its loss is over all keys, and the only one
  double bias_update_rate = 0;  // routed_bias_update_rate; 0: router biases are not updated
  std::uint32_t init_seed = 0;
  std::shared_ptr<const Adapter> adapter = nullptr;  // null: the model's weights alone
};

struct ModelConfig : Architecture, Execution {
  std::string name;
  // True when a step trains only the indexer, without a loss over tokens (the reference's dense warm-up).
  bool trains_indexer_alone() const { return indexer_loss > 0 && !indexer_sparse; }
  // The decoder block that the model was configured with. Where families differ, Architecture has a field.
  const DecoderBlock* block = nullptr;
};

// Builds the model's configuration. Throws Error(usage) for combinations of keys that make no model.
ModelConfig model_config(const Config& config);

// The name that people know a model by: model_name, else where its weights are, else its decoder block.
std::string model_title(const Config& config);

// Number of the model's layers, without prediction layers.
std::int64_t number_of_layers(const Config& config);

// Returns the model for evaluation: it uses eval_ragged_buffer_factor and does not record its routing.
ModelConfig for_evaluation(ModelConfig model);

// Rotation frequencies (radians per position), one for each pair of `dim`. Default: Su et al. 2021; llama3.1:
// wavelength bands as published with Llama 3.1; yarn: Peng et al. 2023.
std::vector<double> rope_frequencies(const RopeConfig& rope, std::int64_t dim);
// The factor that cos and sin are multiplied by.
double rope_amplitude(const RopeConfig& rope);

// Floating point operations for training on one token: forward and
// backward, 2 per multiply-add, and K experts for each MoE layer.
double train_flops_per_token(const ModelConfig& model, std::int64_t sequence);

}  // namespace switchyard

// What a decoder is and how it is run, from the config keys. One place where keys become numbers.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "config/config.h"
#include "core/dtype.h"
#include "models/architecture.h"
#include "models/decoder_block.h"

namespace switchyard {

// How a model is run and trained: never part of what it is.
struct Execution {
  DType dtype = DType::f32;         // of activations and of weights in use
  DType weight_dtype = DType::f32;  // of stored weights
  bool int8_cache = false;          // generation remembers keys and values in 8 bits
  // A split sequence is spread so that causal attention costs every rank the same.
  bool balanced_context = true;
  std::int64_t delta_chunk = 64;  // tokens that a gated delta net's products take at once
  MoeExecution moe_execution;
  bool remat = true;
  std::set<std::string> remat_keeps;     // checkpoint names
  std::set<std::string> remat_offloads;  // of those, and the layers' inputs: what a GPU moves to the host
  std::vector<std::string> trainable;    // trainable_parameters_mask; empty: all
  double z_loss = 0;
  double prediction_loss = 0;   // mtp_loss_scaling_factor
  double indexer_loss = 0;      // indexer_loss_scaling_factor; 0: the indexer is not trained
  bool indexer_sparse = false;  // indexer_sparse_training; else its loss is over all keys, and the only one
  double bias_update_rate = 0;  // routed_bias_update_rate; 0: no such update
  std::uint32_t init_seed = 0;
};

struct ModelConfig : Architecture, Execution {
  std::string name;
  // The indexer learns alone: a step has no loss of tokens (the reference's dense warm-up).
  bool trains_indexer_alone() const { return indexer_loss > 0 && !indexer_sparse; }
  // What families compute alike is the same model: what they differ in are fields of Architecture.
  const DecoderBlock* block = nullptr;
};

// Throws Error(usage) for combinations that make no model.
ModelConfig model_config(const Config& config);

// Layers of the model, prediction layers left out.
std::int64_t number_of_layers(const Config& config);

// The same model as evaluations run it: under eval_ragged_buffer_factor, its routing not recorded.
ModelConfig for_evaluation(ModelConfig model);

// Rotation frequencies (radians per position), one for each pair of `dim`: Su et al. 2021; llama3.1's
// wavelength bands as published with Llama 3.1; yarn after Peng et al. 2023.
std::vector<double> rope_frequencies(const RopeConfig& rope, std::int64_t dim);
// Factor on cos and sin.
double rope_amplitude(const RopeConfig& rope);

// Floating point operations of one trained token (forward and backward, 2 per multiply-add; routed experts
// count K times).
double train_flops_per_token(const ModelConfig& model, std::int64_t sequence);

}  // namespace switchyard

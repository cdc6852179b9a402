// The parts of a decoder layer, built from ops. Each takes x [B,S,M] in the layout of block inputs and
// returns [B,S,M] in that layout. With latent experts, attention returns their width.
#pragma once

#include <optional>
#include <string>

#include "autograd/context.h"
#include "models/model_config.h"
#include "models/parameters.h"
#include "ops/attention.h"
#include "ops/attention_cache.h"
#include "ops/linear.h"

namespace switchyard {

// Flow holds what a layer leaves for later ones of the same pass.
struct Flow {
  Array choice;           // keys that queries chose within the batch (ops/indexer.h); undefined: all
  CachedChoice in_cache;  // keys that they chose among the cached ones
};

struct LayerCall {
  Context& context;
  const ModelConfig& model;
  const Parameters& parameters;
  std::string prefix;  // "layers.3."
  const LayerSpec& layer;
  // Tables for the tokens as laid out in attention: rotations, and the factors of queries that grow
  // (scales_queries), as rotations by 0.
  const RopeTables &rope, &growth;
  const Array& segments;  // i32 [B,S]
  // Generation: the layer's cached keys and values, and the tokens' positions. Else null.
  LayerCache* cache = nullptr;
  const TokenPlaces* places = nullptr;
  bool chunks_in_segments = false;  // chunks are already cut into segments, so positions need not tell them
  HeadScores* scores = nullptr;     // receives the layer's largest scores; null: not asked for
  // For a layer with an indexer: receives its loss, and the
  // chosen keys where it did not choose all. Null: not asked for.
  Array* indexer_loss = nullptr;
  Array* chosen_keys = nullptr;
  Flow* flow = nullptr;
  Array adapters = {};  // i32 [B,S], where the model has several adapters: the number of each token's

  const AttentionKind& attention() const { return model.attention_of(layer); }
  const DeltaKind& delta() const { return model.delta_of(layer); }
  // The layer's parameter of that name, on the device.
  Array parameter(const std::string& name) const { return parameters.on_device(context, prefix + name); }
};

// A parameter in the activations' dtype.
Array weight(const LayerCall& call, const std::string& name);
// Returns what the model's adapter adds to that weight; none where it adds nothing.
std::optional<LowRank> adapter_of(const LayerCall& call, const std::string& name);
// The linear layer with that weight and its adapter; `biased`: its bias is the parameter name + "_bias".
Linear linear(const LayerCall& call, const std::string& name, bool biased = false);

// The layout of a block's input and output, and that layout with M whole (for products over M).
Sharding block_sharding(const AxisRules& rules, const Shape& shape);
Array whole_embedding(Context& context, const Array& x);

// The layout of attention's tokens [B,S].
Sharding attention_tokens(const Context& context, const ModelConfig& model, std::int64_t batch,
                          std::int64_t length);

// Projects heads y [B,S,N,D] through `layer` [N,D,M] to [B,S,M] in the layout of block outputs.
Array project_heads(const LayerCall& call, const Array& y, const Linear& layer);

// Computes silu(x·wi_0) ⊙ (x·wi_1) · wo, with weights named prefix + "wi_0" and so on. A limit clamps both
// factors, in the form of the experts' (MoeConfig::gate_clamp); 0: none.
Array gated_mlp(const LayerCall& call, const std::string& prefix, float limit, const Array& x);

}  // namespace switchyard

// Mixer: the part of a layer in which tokens read each other: attention, or a scan. One file each.
#pragma once

#include <string>

#include "models/blocks/layers.h"

namespace switchyard {

class SpecList;

struct Mixer {
  // Adds the weights of a layer whose names begin with `prefix` ("layers.3.").
  void (*add_specs)(const ModelConfig& model, const LayerSpec& layer, const std::string& prefix,
                    SpecList& list);
  // Maps x [B,S,M] to [B,S,M], both in the layout of block inputs. With latent experts the result has the
  // experts' width.
  Array (*forward)(const LayerCall& call, const Array& x);
  // Multiply-adds of a token: products with weights, and with the keys or the state that it sees in a
  // sequence of that length.
  double (*products)(const ModelConfig& model, const LayerSpec& layer, std::int64_t sequence);
  bool keeps_states = false;  // its cache has StateStores, not vectors of tokens (ops/layer_cache.h)
};

// Grouped-query attention (Ainslie et al. 2023) with optional norms of queries and keys.
extern const Mixer kGroupedAttention;
// Multi-head latent attention (DeepSeek-V2). Its cache holds latent vectors and rotary keys, shared by all
// heads. With cached tokens, the heads' up-projections are applied to queries and results, not to every
// token's latent vector.
extern const Mixer kLatentAttention;
// The gated delta net (Yang et al. 2024; Qwen3-Next). A split sequence is gathered: every rank along its axes
// scans it whole, for its own batch and heads.
extern const Mixer kGatedDeltaNet;

inline const Mixer& mixer_of(const Architecture& model, const LayerSpec& layer) {
  if (layer.delta >= 0) return kGatedDeltaNet;
  return model.attention_of(layer).mla ? kLatentAttention : kGroupedAttention;
}

}  // namespace switchyard

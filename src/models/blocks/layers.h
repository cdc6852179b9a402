// The blocks of a decoder layer, from ops. Each takes x [B,S,M] in the layout of block inputs and returns
// [B,S,M] alike; attention of a model with latent experts returns their width.
#pragma once

#include "autograd/context.h"
#include "models/model_config.h"
#include "models/parameters.h"
#include "ops/attention.h"
#include "ops/attention_cache.h"
#include "ops/linear.h"

namespace switchyard {

struct LayerCall {
  Context& context;
  const ModelConfig& model;
  const Parameters& parameters;
  std::string prefix;  // "layers.3."
  const LayerSpec& layer;
  // Of the tokens as attention has them; of a layer without rotation the factors of its queries, if there are
  // some (scales_queries).
  const RopeTables& rope;
  const Array& segments;  // i32 [B,S]
  // Of generation, else null: what attention remembers of the tokens before, and where these stand.
  AttentionCache* cache = nullptr;
  const TokenPlaces* places = nullptr;
  bool chunks_in_segments = false;  // the layer's chunks end segments, so that places need not tell them
  HeadScores* scores = nullptr;     // where the layer's largest scores go; null: they are not asked for
  // Of a layer with an indexer: where its loss goes, and the keys that it chose where it did not choose all;
  // null: not asked for.
  Array* indexer_loss = nullptr;
  Array* chosen_keys = nullptr;
};

// A parameter in the dtype of activations.
Array weight(const LayerCall& call, const std::string& name);
// The linear layer of that weight; `biased`: with the parameter name + "_bias".
Linear linear(const LayerCall& call, const std::string& name, bool biased = false);

// The layout of a block's input and output, and the same with M whole (what products over M read).
Sharding block_sharding(const AxisRules& rules, const Shape& shape);
Array whole_embedding(Context& context, const Array& x);

// Layout [B,S] of the tokens in attention.
Sharding attention_tokens(const Context& context, const ModelConfig& model, std::int64_t batch,
                          std::int64_t length);

// y [B,S,N,D] of heads through a layer [N,D,M] -> [B,S,M] in the layout of block outputs.
Array project_heads(const LayerCall& call, const Array& y, const Linear& layer);

// Grouped-query attention (Ainslie et al. 2023) with optional norms on q and k.
Array grouped_query_attention(const LayerCall& call, const Array& x);
// Multi-head latent attention (DeepSeek-V2). It remembers latent vectors and rotary keys, which all heads
// share; where tokens were before, the heads' up-projections are applied to queries and results instead of to
// every token's latent vector.
Array latent_attention(const LayerCall& call, const Array& x);
// silu(x·wi_0) ⊙ (x·wi_1) · wo with weights prefix + "wi_0" ….
Array gated_mlp(const LayerCall& call, const std::string& prefix, const Array& x);

}  // namespace switchyard

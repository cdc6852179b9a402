// The indexer of multi-head latent attention (DeepSeek-V3.2, sparse attention).
#pragma once

#include "models/blocks/layers.h"
#include "ops/indexer.h"

namespace switchyard {

// The indexer's queries, from the latents of attention's queries [B,S,R], and its keys and weights, from
// attention's input [B,S,M]. Every rank has all heads, whatever the layout of attention's heads.
IndexVectors index_vectors(const LayerCall& call, const Array& x, const Array& query_latents);

// The keys that each query may choose within a batch, and, where the indexer learns, the scores of the
// choice. Both are undefined where a query may attend to every key that it sees.
struct IndexChoice {
  Array chosen, scores;
};
IndexChoice choose_keys_of(const LayerCall& call, const IndexVectors& index);

// True when this call's indexer learns. Its vectors then come from detached inputs.
bool indexer_learns(const LayerCall& call);

}  // namespace switchyard

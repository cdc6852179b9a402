// The indexer of multi-head latent attention (DeepSeek-V3.2, sparse attention).
#pragma once

#include "models/blocks/layers.h"
#include "ops/indexer.h"

namespace switchyard {

// Its queries, from the latents of attention's queries [B,S,R], its keys and its weights, from what attention
// reads [B,S,M]. All heads are whole, whatever the layout of attention's.
IndexVectors index_vectors(const LayerCall& call, const Array& x, const Array& query_latents);

// The keys that attention within a batch has to choose of, and the scores by which it did, where the indexer
// learns. Both undefined where every query may attend to all that it sees.
struct IndexChoice {
  Array chosen, scores;
};
IndexChoice choose_keys_of(const LayerCall& call, const IndexVectors& index);

// Whether this call's indexer learns: then its vectors are made of detached inputs.
bool indexer_learns(const LayerCall& call);

}  // namespace switchyard

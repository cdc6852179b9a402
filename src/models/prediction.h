// Multi-token prediction (DeepSeek-V3): prediction layers follow a model's layers. Each predicts one token
// further ahead than the layer before it.
//
// h_0 is the output of the last layer, before the final norm; with mtp_reads_final_norm (Qwen3-Next, Qwen3.5)
// behind it, and each h_k behind the final norm of layer k. Prediction layer k = 1, 2, … computes
//   h_k = layer([norm(embedding of the token k positions ahead), norm(h_(k-1))] · projection)
// and its logits come from the model's own final norm and head: position t reads the tokens up to t + k and
// predicts the target of t + k. Positions and segments are those of t.
#pragma once

#include <vector>

#include "data/dataset.h"
#include "models/blocks/layers.h"

namespace switchyard {

// Inputs and targets of a prediction layer: those of the batch k positions ahead; i32 [B,S]. A position whose
// token k ahead is in another segment, or past the end, gets token 0 and no target.
struct FurtherTokens {
  Array inputs, targets, target_segments;
};

// The shifted rows of `batch` for each of `predictions` layers, one batch each. Positions, segments stay.
std::vector<Batch> further_batches(const Batch& batch, std::int64_t predictions);

// Number of targets that count, over all prediction layers, in the given rows.
double count_further_targets(const Batch& batch, std::int64_t predictions);

// The input [B,S,M] of a prediction layer's decoder layer, laid out like `hidden` [B,S,M], which is h_(k-1).
// `table` is the embedding in the activations' dtype.
Array prediction_input(const LayerCall& call, const Array& table, const Array& tokens, const Array& hidden);

}  // namespace switchyard

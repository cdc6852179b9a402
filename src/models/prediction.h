// Multi-token prediction (DeepSeek-V3): after a model's layers come layers each of which predicts one token
// further ahead than the one before.
//
// h_0 is what the last layer gives, before the final norm. Prediction layer k = 1, 2, … gives
//   h_k = layer([norm(embedding of the token k places on), norm(h_(k-1))] · projection)
// and its logits are those of the final norm and the head, the model's own: position t is told the tokens up
// to t + k and predicts the target of t + k. Positions and segments are those of t.
#pragma once

#include <vector>

#include "data/dataset.h"
#include "models/blocks/layers.h"

namespace switchyard {

// What a prediction layer is given and is to predict: inputs and targets of the batch k places on; i32 [B,S].
// A position whose token k places on is in another segment, or past the end, has token 0 and no target.
struct FurtherTokens {
  Array inputs, targets, target_segments;
};

// The rows of `batch` for each of `predictions` layers, as a batch each (its positions and segments stay).
std::vector<Batch> further_batches(const Batch& batch, std::int64_t predictions);

// Targets that count, of all prediction layers together, in the rows that are given.
double count_further_targets(const Batch& batch, std::int64_t predictions);

// The input [B,S,M] of a prediction layer's own layer, laid out as `hidden` [B,S,M], which is h_(k-1);
// `table` is the embedding in the dtype of activations.
Array prediction_input(const LayerCall& call, const Array& table, const Array& tokens, const Array& hidden);

}  // namespace switchyard

// Sparse attention (DeepSeek-V3.2): a trainable indexer chooses the keys that queries attend to.
#pragma once

#include "autograd/op.h"

namespace switchyard {

// An indexer's projections of tokens: q [B,S,H,D] with whole heads, k [B,S,D] and weights [B,S,H] f32, batch
// and sequence split alike. A score is factor * sum over heads of weights * relu(q.k), for the keys that
// causal attention within segments sees.
struct IndexVectors {
  Array q, k, weights;
  float factor = 1;
};

// Chooses, for every query, the `count` keys with the largest scores, or all keys it sees if fewer; of equal
// scores the earlier key. i32 [B,S,words]: one bit per key (kernels/attention/index_keys.h). Scores are
// computed for some queries at a time. No gradient.
Array chosen_keys(Context& context, const IndexVectors& index, const Array& segments, std::int64_t count);

// Gives the keys of `replayed`, this rank's block of such bits on the host, in place of the indexer's own.
// `ties`, f32 [B,S,2] of this rank on the host, receives for each query: how many of the replayed keys the
// indexer would not choose; and how far it is from them: the largest score of a key that is not replayed less
// the smallest of one that is, as a share of the query's largest score. Both are 0 for the indexer's own
// choice. The share is 1 where no scores can lead to the choice: another number of keys, keys that the query
// does not see, scores that are no numbers.
Array replayed_keys(Context& context, const IndexVectors& index, const Array& segments, std::int64_t count,
                    const Tensor& replayed, const Tensor& ties);

// Chooses keys by scores that are already computed.
Array chosen_of_scores(Context& context, const Array& scores, std::int64_t count);

// Computes all scores, f32 [B,S,T]; -infinity for keys that a query does not see.
Array index_scores(Context& context, const IndexVectors& index, const Array& segments);

struct IndexLossOptions {
  float scale = 1;    // of attention's scores
  double factor = 1;  // of the loss
};
// The mean over all tokens of the divergence KL(p || c). p: the attention probabilities of q [B,S,N,D] for
// keys k [B,S,N,D], summed over heads and normalised; c: the softmax of the scores. Both over the visible
// keys, or over the chosen ones if `chosen` is defined. [] f32, times the factor.
// Only the scores receive a gradient.
Array index_loss(Context& context, const Array& scores, const Array& q, const Array& k, const Array& segments,
                 const Array& chosen, const IndexLossOptions& options);

// Returns x, but passes no gradient to it.
Array detach(Context& context, const Array& x);

// x [..., D] minus the mean over its last dim, which must be whole.
Array subtract_mean(Context& context, const Array& x);

}  // namespace switchyard

// Sparse attention (DeepSeek-V3.2): an indexer chooses the keys that queries attend to, and learns to.
#pragma once

#include "autograd/op.h"

namespace switchyard {

// What an indexer makes of tokens: q [B,S,H,D] with whole heads, k [B,S,D] and weights [B,S,H] f32, batch
// and sequence split alike. Scores are factor * sum over heads of weights * relu(q.k), of the keys that
// causal attention within segments sees.
struct IndexVectors {
  Array q, k, weights;
  float factor = 1;
};

// The `count` keys of the largest scores of every query, or all that it sees where there are fewer; of equal
// scores the lower key. i32 [B,S,words]: a bit a key (kernels/attention/index_keys.h). Scores are made for
// some queries at a time. No gradient.
Array chosen_keys(Context& context, const IndexVectors& index, const Array& segments, std::int64_t count);

// The same of scores that are there.
Array chosen_of_scores(Context& context, const Array& scores, std::int64_t count);

// All scores, f32 [B,S,T]; -infinity for keys that a query does not see.
Array index_scores(Context& context, const IndexVectors& index, const Array& segments);

struct IndexLossOptions {
  float scale = 1;    // of attention's scores
  double factor = 1;  // of the loss
};
// The mean over all tokens of the divergence KL(p || c): p the shares of attention that q [B,S,N,D] gives to
// keys k [B,S,N,D], summed over heads, over their sum; c the softmax of the scores. Both over the keys that
// are seen, or over the chosen ones, if `chosen` is defined. [] f32, times the factor. Its gradient goes to
// the scores alone.
Array index_loss(Context& context, const Array& scores, const Array& q, const Array& k, const Array& segments,
                 const Array& chosen, const IndexLossOptions& options);

// x, through which no gradient goes.
Array detach(Context& context, const Array& x);

// x [..., D] less the mean of its last dim, which is whole.
Array subtract_mean(Context& context, const Array& x);

}  // namespace switchyard

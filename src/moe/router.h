// Router: scores, selection and weights of moe.md §1.
#pragma once

#include <span>

#include "autograd/op.h"
#include "moe/moe.h"

namespace switchyard {

// Gate logits f32 [B,S,E] of x [B,S,M], laid out like x's tokens, E whole.
Array gate_logits(Context& context, const MoeConfig& config, const Array& x, const Array& gate);

// Chooses K experts a token and their weights. `step`, `layer` and `first_row`, the place of these tokens'
// first row in the batch of that step, matter to random routing only. The decision is never recomputed by
// remat. `replayed`, where defined, is this rank's block i32 [B,S,K] of choices made elsewhere; their weights
// are those of these logits.
Routing route(Context& context, const MoeConfig& config, const Array& logits, const Array& bias,
              std::int64_t step, std::int64_t layer, std::int64_t first_row = 0, const Tensor& replayed = {});

// One token: ids[K] and weights[K] from logits[E] (bias may be empty). Ties go to the lower id. Exposed for
// tests.
void route_token(const MoeConfig& config, std::span<const float> logits, std::span<const float> bias,
                 std::span<std::int32_t> ids, std::span<float> weights);

// Scores of one token before the bias: logits, softmax or sigmoid of them.
void router_scores(RouterScore score, std::span<const float> logits, std::span<float> scores);
// Σ shares[e]·(d[e] - d[0]): the mean of d under shares of sum 1, less d[0]. d[e] - d[0] less this is d[e]'s
// distance from the mean, exactly 0 where all d are equal and without the rounding of their common part.
float mean_from_first(std::span<const float> shares, std::span<const float> d);

// dlogits of router_scores, added to `dlogits`.
void router_scores_backward(RouterScore score, std::span<const float> scores, std::span<const float> dscores,
                            std::span<float> dlogits);

}  // namespace switchyard

// Scores one token's experts by a warp, in shared memory, as kernels/moe/router_scores.h does on the host.
#pragma once

#include "kernels/cuda/portable.h"
#include "kernels/moe/router_scores.h"

namespace switchyard::gpu {

GPU_FUNCTION int lane_index() {
  return thread_index() % kWarp;
}

// scores[e] of logits[e], which may be the same memory.
GPU_FUNCTION void warp_scores(RouterScore score, const float* logits, float* scores, std::int64_t experts) {
  if (score == RouterScore::softmax) {
    float top = logits[0];
    for (std::int64_t e = lane_index(); e < experts; e += kWarp) top = logits[e] > top ? logits[e] : top;
    top = warp_max(top);
    float sum = 0;
    for (std::int64_t e = lane_index(); e < experts; e += kWarp) sum += expf(logits[e] - top);
    sum = warp_sum(sum);
    for (std::int64_t e = lane_index(); e < experts; e += kWarp) scores[e] = expf(logits[e] - top) / sum;
  } else {
    for (std::int64_t e = lane_index(); e < experts; e += kWarp) {
      const float x = logits[e];
      scores[e] = score == RouterScore::sigmoid         ? 1.0f / (1.0f + expf(-x))
                  : score != RouterScore::sqrt_softplus ? x
                  : x < kVanishingLogit                 ? expf(x / 2)
                                        : sqrtf((x > 0 ? x : 0.0f) + log1pf(expf(x > 0 ? -x : x)));
    }
  }
  warp_barrier();
}

// Shares s/Σs of the scores of these logits, which are each alone and vanish. May be the same memory.
GPU_FUNCTION void warp_shares_of_logits(RouterScore score, const float* logits, float* shares,
                                        std::int64_t experts) {
  for (std::int64_t e = lane_index(); e < experts; e += kWarp) shares[e] = share_factor(score) * logits[e];
  warp_barrier();
  warp_scores(RouterScore::softmax, shares, shares, experts);
}

// Σ shares[e]·(d[e] - d[0]), for all lanes.
GPU_FUNCTION float warp_mean_from_first(const float* shares, const float* d, std::int64_t experts) {
  float mean = 0;
  for (std::int64_t e = lane_index(); e < experts; e += kWarp) mean += shares[e] * (d[e] - d[0]);
  return warp_sum(mean);
}

// dlogits of warp_scores, added to dlogits, or written.
template <bool adds>
GPU_FUNCTION void warp_scores_backward(RouterScore score, const float* scores, const float* dscores,
                                       float* dlogits, std::int64_t experts) {
  const float mean = score == RouterScore::softmax ? warp_mean_from_first(scores, dscores, experts) : 0.0f;
  for (std::int64_t e = lane_index(); e < experts; e += kWarp) {
    float d = dscores[e];
    if (score == RouterScore::softmax) d = scores[e] * (d - dscores[0] - mean);
    if (score == RouterScore::sigmoid) d = d * scores[e] * (1 - scores[e]);
    if (score == RouterScore::sqrt_softplus)
      d *= scores[e] < kStraightScore ? scores[e] / 2 : -expm1f(-scores[e] * scores[e]) / (2 * scores[e]);
    dlogits[e] = adds ? dlogits[e] + d : d;
  }
}

// Called by the host: out[c] = the sum of column c of x [rows, columns], in the order of rows (route.cu).
void sum_columns_in_order(const float* x, std::int64_t rows, std::int64_t columns, float* out);

}  // namespace switchyard::gpu

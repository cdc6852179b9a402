// The load of experts and its loss: a warp takes a token's probabilities; a thread takes an expert's sums
// over a sequence, in double and in the order of tokens.
#include "kernels/cuda/portable.h"
#include "kernels/cuda/workspace.h"
#include "kernels/moe/cuda/router_scores.h"
#include "kernels/moe/kernels.h"

namespace switchyard::gpu {
namespace {

constexpr int kBalanceWarps = 4, kBalanceThreads = 128;

struct Scores {
  RouterScore score;
  bool softmax_of_scores;
  const float* logits;
  const float* bias;
  std::int64_t tokens, length, experts;  // length: tokens of a sequence
};

Scores scores_of(const BalanceScores& from) {
  return {from.score,
          from.softmax_of_scores,
          from.logits.device_data<float>(),
          from.bias.device_data<float>(),
          from.logits.dim(0) * from.logits.dim(1),
          from.logits.dim(1),
          from.logits.dim(2)};
}

Launch token_warps(const Scores& s, int arrays) {
  return {.blocks = divide_up(s.tokens, kBalanceWarps),
          .threads = kBalanceThreads,
          .shared_bytes = static_cast<std::size_t>(kBalanceWarps * arrays * s.experts) * sizeof(float)};
}

GPU_FUNCTION float sum_of(const float* x, std::int64_t count) {
  float sum = 0;
  for (std::int64_t i = lane_index(); i < count; i += kWarp) sum += x[i];
  return warp_sum(sum);
}

GPU_KERNEL token_probabilities(Scores s, float* probabilities) {
  const int warp = thread_index() / kWarp;
  const std::int64_t token = block_index() * kBalanceWarps + warp;
  if (token >= s.tokens) return;
  float* const scores = dynamic_shared<float>() + warp * s.experts;
  float* const out = probabilities + token * s.experts;
  for (std::int64_t e = lane_index(); e < s.experts; e += kWarp) scores[e] = s.logits[token * s.experts + e];
  warp_barrier();
  warp_scores(s.score, scores, scores, s.experts);
  for (std::int64_t e = lane_index(); e < s.experts && s.bias != nullptr; e += kWarp) scores[e] += s.bias[e];
  warp_barrier();
  if (s.softmax_of_scores) {
    warp_scores(RouterScore::softmax, scores, scores, s.experts);
    for (std::int64_t e = lane_index(); e < s.experts; e += kWarp) out[e] = scores[e];
  } else {
    const float sum = scores_each_alone(s.score) ? sum_of(scores, s.experts) : 1.0f;
    if (sum < kVanishingSum) {  // a whole warp
      warp_shares_of_logits(s.score, s.logits + token * s.experts, scores, s.experts);
      for (std::int64_t e = lane_index(); e < s.experts; e += kWarp) out[e] = scores[e];
      return;
    }
    for (std::int64_t e = lane_index(); e < s.experts; e += kWarp) out[e] = scores[e] / sum;
  }
}

GPU_FUNCTION bool counts_token(const std::int32_t* segments, std::int64_t token) {
  return segments == nullptr || segments[token] != 0;
}

// sums[sequence]: choices of each expert, sums of probabilities, and the tokens that count.
GPU_KERNEL sum_sequences(Scores s, const float* probabilities, const std::int32_t* ids,
                         std::int64_t per_token, const std::int32_t* segments, double* sums) {
  const std::int64_t sequence = block_index(), e = block_index_y() * kBalanceThreads + thread_index();
  if (e > s.experts) return;
  double* const row = sums + sequence * (2 * s.experts + 1);
  double choices = 0, probability = 0;
  for (std::int64_t t = sequence * s.length; t < (sequence + 1) * s.length; ++t) {
    if (!counts_token(segments, t)) continue;
    if (e == s.experts) {
      choices += 1;  // of the thread behind the experts: the tokens
      continue;
    }
    for (std::int64_t k = 0; k < per_token; ++k) choices += ids[t * per_token + k] == e ? 1 : 0;
    probability += static_cast<double>(probabilities[t * s.experts + e]);
  }
  if (e == s.experts) {
    row[2 * s.experts] = choices;
    return;
  }
  row[e] = choices;
  row[s.experts + e] = probability;
}

GPU_FUNCTION double divisor_of(const double* row, std::int64_t experts) {
  return row[2 * experts] > 1 ? row[2 * experts] : 1;
}

GPU_KERNEL sum_loss(const double* sums, std::int64_t sequences, std::int64_t experts, double factor,
                    float* loss) {
  GPU_SHARED(double, scratch, kBalanceThreads / kWarp);
  double all = 0;
  for (std::int64_t b = 0; b < sequences; ++b) {
    const double* const row = sums + b * (2 * experts + 1);
    const double tokens = divisor_of(row, experts);
    double of_sequence = 0;
    for (std::int64_t e = thread_index(); e < experts; e += kBalanceThreads)
      of_sequence += row[e] / tokens * (row[experts + e] / tokens);
    all += block_sum(of_sequence, scratch);
  }
  if (thread_index() == 0) *loss = static_cast<float>(all * factor);
}

// `all_dscores`: [tokens, experts], or null.
GPU_KERNEL token_gradients(Scores s, const float* probabilities, const double* sums, const float* gradient,
                           double factor, const std::int32_t* segments, float* dlogits, float* all_dscores) {
  const int warp = thread_index() / kWarp;
  const std::int64_t token = block_index() * kBalanceWarps + warp;
  if (token >= s.tokens) return;
  float* const dp = dynamic_shared<float>() + warp * 3 * s.experts;
  float *const scores = dp + s.experts, *const dscores = scores + s.experts;
  float* const out = dlogits + token * s.experts;
  float* const kept = all_dscores == nullptr ? nullptr : all_dscores + token * s.experts;
  if (!counts_token(segments, token)) {
    for (std::int64_t e = lane_index(); e < s.experts; e += kWarp) {
      out[e] = 0;
      if (kept != nullptr) kept[e] = 0;
    }
    return;  // a whole warp
  }
  const double* const row = sums + token / s.length * (2 * s.experts + 1);
  const double tokens = divisor_of(row, s.experts), g = *gradient;
  const float* const p = probabilities + token * s.experts;
  for (std::int64_t e = lane_index(); e < s.experts; e += kWarp) {
    dp[e] = static_cast<float>(g * factor * (row[e] / tokens) / tokens);
    scores[e] = s.logits[token * s.experts + e];
  }
  warp_barrier();
  warp_scores(s.score, scores, scores, s.experts);
  if (s.softmax_of_scores) {
    warp_scores_backward<false>(RouterScore::softmax, p, dp, dscores, s.experts);
  } else if (scores_each_alone(s.score)) {
    const float sum = sum_of(scores, s.experts), mean = warp_mean_from_first(p, dp, s.experts);
    if (sum < kVanishingSum) {  // a whole warp: p is a softmax of the logits times that factor
      for (std::int64_t e = lane_index(); e < s.experts; e += kWarp) {
        out[e] = share_factor(s.score) * p[e] * (dp[e] - dp[0] - mean);
        if (kept != nullptr) kept[e] = 0;
      }
      return;
    }
    for (std::int64_t e = lane_index(); e < s.experts; e += kWarp) dscores[e] = (dp[e] - dp[0] - mean) / sum;
  } else {
    for (std::int64_t e = lane_index(); e < s.experts; e += kWarp) dscores[e] = dp[e];
  }
  warp_barrier();
  warp_scores_backward<false>(s.score, scores, dscores, out, s.experts);
  for (std::int64_t e = lane_index(); e < s.experts && kept != nullptr; e += kWarp) kept[e] = dscores[e];
}

GPU_KERNEL count_chosen(const std::int32_t* ids, const std::int32_t* segments, std::int64_t count,
                        std::int64_t per_token, std::int32_t* counts) {
  const std::int64_t i = block_index() * thread_count() + thread_index();
  if (i < count && ids[i] >= 0 && counts_token(segments, i / per_token)) atomic_add(&counts[ids[i]], 1);
}

GPU_KERNEL clear_counts(std::int32_t* counts, std::int64_t count) {
  const std::int64_t i = block_index() * thread_count() + thread_index();
  if (i < count) counts[i] = 0;
}

}  // namespace

void balance_statistics(const BalanceStatisticsArgs& args) {
  const Scores s = scores_of(args.scores);
  launch(token_warps(s, 1), token_probabilities, s, args.probabilities.device_data<float>());
  launch({.blocks = args.scores.logits.dim(0),
          .threads = kBalanceThreads,
          .blocks_y = static_cast<int>(divide_up(s.experts + 1, kBalanceThreads))},
         sum_sequences, s, args.probabilities.device_data<float>(), args.ids.device_data<std::int32_t>(),
         args.ids.dim(2), args.segments.device_data<std::int32_t>(), args.sums.device_data<double>());
}

void balance_loss_value(const BalanceLossArgs& args) {
  launch({.blocks = 1, .threads = kBalanceThreads}, sum_loss, args.sums.device_data<double>(),
         args.sums.dim(0), args.sums.dim(1) / 2, args.factor, args.loss.device_data<float>());
}

void balance_loss_backward(const BalanceBackwardArgs& args) {
  const Scores s = scores_of(args.scores);
  const Workspace dscores(args.dlogits, args.dbias.defined() ? args.dlogits.bytes() : 0);
  launch(token_warps(s, 3), token_gradients, s, args.probabilities.device_data<float>(),
         args.sums.device_data<double>(), args.gradient.device_data<float>(), args.factor,
         args.segments.device_data<std::int32_t>(), args.dlogits.device_data<float>(), dscores.data<float>());
  if (args.dbias.defined())
    sum_columns_in_order(dscores.data<float>(), s.tokens, s.experts, args.dbias.device_data<float>());
}

void count_choices(const CountChoicesArgs& args) {
  auto* const counts = args.counts.device_data<std::int32_t>();
  launch({.blocks = divide_up(args.counts.size(), kBalanceThreads), .threads = kBalanceThreads}, clear_counts,
         counts, args.counts.size());
  launch({.blocks = divide_up(args.ids.size(), kBalanceThreads), .threads = kBalanceThreads}, count_chosen,
         args.ids.device_data<std::int32_t>(), args.segments.device_data<std::int32_t>(), args.ids.size(),
         args.ids.dim(2), counts);
}

}  // namespace switchyard::gpu

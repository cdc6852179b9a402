// Losses over pairs of answers: DPO (Rafailov et al. 2023) and ORPO (Hong et al. 2024), of the targets'
// log-probabilities.
//
// Pair p of a row is its segments 2p + 1, the answer that was chosen, and 2p + 2, the one that was rejected.
#pragma once

#include "autograd/op.h"

namespace switchyard {

enum class PreferenceKind { dpo, orpo };

struct PreferenceOptions {
  PreferenceKind kind = PreferenceKind::dpo;
  double beta = 0.1;           // dpo: factor of a log-probability's distance from the reference's
  double label_smoothing = 0;  // dpo: the share of pairs that may be the wrong way round
  double odds_factor = 0.1;    // orpo: lambda
  double pairs = 1;            // in the whole batch: sums over pairs are divided by it
  double chosen_targets = 1;   // orpo: likewise for the targets of the chosen answers
};

struct PairCounts {
  double pairs = 0, chosen_targets = 0;
};
// Counts the pairs of target segments i32 [B,S] on the host. A pair has targets on both sides.
PairCounts count_pairs(const Tensor& target_segments);

// Each [] f32 and whole on every rank. What follows the loss has no gradient: means over pairs, so that the
// parts of several microbatches add up.
struct Preference {
  Array loss;
  Array chosen_reward, rejected_reward;
  Array preferred;  // the share of pairs whose chosen answer has the larger reward
};

// `log_probs`, f32 [B,S]: of ops/loss.h token_log_probs. `reference`: the same of the model that the trained
// one is held to, without a gradient; undefined for orpo, which has none. `target_segments` i32 [B,S].
//   dpo   with d = beta · (chosen − rejected), each a sum of log-probabilities less the reference's:
//         the mean of −(1 − label_smoothing) · log σ(d) − label_smoothing · log σ(−d).
//   orpo  with c and r the mean log-probability of a target: the mean nll of the chosen targets, and the mean
//         over pairs of −odds_factor · log σ(log(p / (1 − p)) of e^c less that of e^r).
Preference preference_loss(Context& context, const Array& log_probs, const Array& reference,
                           const Array& target_segments, const PreferenceOptions& options);

}  // namespace switchyard

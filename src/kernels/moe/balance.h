// Measures the load of experts, and computes the auxiliary loss that balances it. Views have no gaps.
// Bit-identical for any number of threads.
//
// With n tokens of a sequence that count, density[e] = (choices of expert e) / n and
// prob[e] = (sum over the tokens of the expert's probability) / n. The loss is
// factor · Σ over sequences and experts of density · prob, in double.
#pragma once

#include <cstdint>

#include "core/tensor_view.h"
#include "core/thread_pool.h"
#include "kernels/moe/router_scores.h"

namespace switchyard {

// A token's probabilities: softmax of scores + bias with `softmax_of_scores`, otherwise the scores, divided
// by their sum where they are each alone; where all of them vanish, from the logits (router_scores.h).
struct BalanceScores {
  RouterScore score = RouterScore::none;
  bool softmax_of_scores = true;
  TensorView logits;  // [B,S,E] f32
  TensorView bias;    // [E] f32, added to the scores; undefined: none
};

// Sums for each sequence E counts of choices, E probabilities, and the tokens that count.
// Sums of the parts of a sequence add up to its own.
struct BalanceStatisticsArgs {
  BalanceScores scores;
  TensorView ids;            // [B,S,K] i32; -1: no expert
  TensorView segments;       // [B,S] i32: tokens of segment 0 do not count; undefined: all count
  TensorView probabilities;  // [B,S,E] f32, overwritten, of all tokens
  TensorView sums;           // [B,2E+1] f64, overwritten
};
void balance_statistics(ThreadPool& pool, const BalanceStatisticsArgs& args);

struct BalanceLossArgs {
  TensorView sums;  // [B,2E+1] f64, of whole sequences
  TensorView loss;  // [] f32, overwritten
  double factor = 1;
};
void balance_loss_value(ThreadPool& pool, const BalanceLossArgs& args);

// The gradients, the choices being constants. dbias adds up in the order of the tokens.
struct BalanceBackwardArgs {
  BalanceScores scores;
  TensorView segments;       // as in BalanceStatisticsArgs
  TensorView probabilities;  // as balance_statistics gave them
  TensorView sums;           // of whole sequences
  TensorView gradient;       // [] f32: the loss's own
  TensorView dlogits;        // [B,S,E] f32, overwritten
  TensorView dbias;          // [E] f32, overwritten; undefined: not wanted
  double factor = 1;
};
void balance_loss_backward(ThreadPool& pool, const BalanceBackwardArgs& args);

// counts[e] = how often expert e is among the ids of tokens that count.
struct CountChoicesArgs {
  TensorView ids;       // [B,S,K] i32; -1: no expert
  TensorView segments;  // [B,S] i32, as in BalanceStatisticsArgs
  TensorView counts;    // [E] i32, overwritten
};
void count_choices(ThreadPool& pool, const CountChoicesArgs& args);

}  // namespace switchyard

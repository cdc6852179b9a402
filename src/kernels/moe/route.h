// Chooses K of E experts for each token, and computes their weights. Views have no gaps. Bit-identical for
// any number of threads.
#pragma once

#include <cstdint>
#include <span>

#include "core/rng.h"
#include "core/tensor_view.h"
#include "core/thread_pool.h"
#include "kernels/moe/router_scores.h"

namespace switchyard {

// Scores of the logits: router_scores.h. The K largest of scores + bias are chosen, best first; ties go to
// the lower id. The weights are those of the chosen scores.
struct RoutingRule {
  RouterScore score = RouterScore::none;
  bool softmax_over_selected = true;  // weights: softmax of the K chosen scores, and no more
  bool normalise = false;             // weights: divided by their sum over K plus normalise_epsilon
  float normalise_epsilon = 0;
  float scaling = 1;                  // weights: multiplied by it
  bool choose_by_logit = false;       // the K largest of logits + bias are chosen, however scores round
  bool weights_include_bias = false;  // weights: of scores + bias
  // Above 1: experts stand in so many groups of E / groups, and only those of the kept_groups best groups can
  // be chosen. A group scores its best score. It scores the sum of its two best with by_two_best, and where
  // each score is computed alone.
  std::int64_t groups = 0;
  std::int64_t kept_groups = 0;
  bool by_two_best = false;
  // The ids are drawn; the weights are scores + bias, unchanged.
  bool random = false;
  // Weights of given choices: of scores + bias, and in the sum that they are divided by a choice without
  // an expert counts as expert 0, as MaxText has it.
  bool given_as_maxtext = false;
};

// A given choice of no expert: its id becomes -1 and its weight 0. A token of segment 0 makes no other.
inline constexpr std::int32_t kUnusedChoice = -2;

// Draws of ids: those of a token depend on the key and its place in the whole batch alone.
struct RandomChoices {
  RngKey key;
  std::int64_t first_row = 0, first_column = 0;  // place of token [0,0] in the batch
  std::int64_t columns = 0;                      // tokens in a row of the batch
};

struct RouteArgs {
  RoutingRule rule;
  TensorView logits;  // [B,S,E] f32
  TensorView bias;    // [E] f32; undefined: none
  // [B,S,K] i32, copied to ids in place of a choice, but for tokens whose first one is -1: for those, and
  // where this is undefined, the rule chooses.
  TensorView choices;
  RandomChoices random;      // with rule.random
  TensorView segments = {};  // [B,S] i32: tokens of segment 0 choose no expert; undefined: all choose
  TensorView ids;            // [B,S,K] i32; -1: no expert
  TensorView weights;        // [B,S,K] f32
};
void route(ThreadPool& pool, const RouteArgs& args);

// Gradients of the weights with respect to logits and bias, the ids being constants. dbias adds up in the
// order of the tokens.
struct RouteBackwardArgs {
  RoutingRule rule;
  TensorView logits, bias;  // as in RouteArgs
  TensorView choices = {};
  TensorView ids, weights;
  TensorView dweights;  // [B,S,K] f32
  TensorView dlogits;   // [B,S,E] f32, overwritten
  TensorView dbias;     // [E] f32, overwritten; undefined: not wanted
};
void route_backward(ThreadPool& pool, const RouteBackwardArgs& args);

// True where the weights depend on the bias.
bool weights_have_bias(const RoutingRule& rule);

// One token on the host: ids[K] and weights[K] from logits[E]; bias may be empty. Not with rule.random.
void route_token(const RoutingRule& rule, std::span<const float> logits, std::span<const float> bias,
                 std::span<std::int32_t> ids, std::span<float> weights);

}  // namespace switchyard

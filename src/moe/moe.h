// The MoE layer's vocabulary: its configuration and how it is run, its weights, what the router decides and
// what is measured.
//
// Shapes: B batch, S sequence, M emb_dim, H moe_mlp_dim, E experts, K slots (experts per token), R rows on
// this rank. A row is one (token, slot) pair.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "autograd/array.h"
#include "kernels/moe/router_scores.h"
#include "ops/linear.h"

namespace switchyard {

class RoutingTape;

enum class DropPolicy { fair, prefix };

// What the layer computes. How it does so is MoeExecution's.
struct MoeConfig {
  std::int64_t experts = 0;
  std::int64_t slots = 0;  // num_experts_per_tok
  RouterScore score = RouterScore::none;
  bool softmax_over_selected = true;  // weights: softmax of the K selected logits (mixtral)
  bool normalise = false;             // weights: divided by their sum over K
  float normalise_epsilon = 0;        // added to that sum
  float scaling = 1;                  // routed_scaling_factor
  bool choose_by_logit = false;       // the choice is of logits, whatever the weights are made of (llama4)
  bool weights_on_inputs = false;     // a weight multiplies what its expert takes, not what it gives (llama4)
  bool bias = false;                  // a bias for the choice alone (routed_bias)
  bool logit_bias = false;            // a bias of the logits (gpt-oss)
  bool weights_include_bias = false;  // compat=maxtext, by the model's name
  std::int64_t groups = 0;            // n_routing_groups, 0 = not group-limited
  std::int64_t kept_groups = 0;       // topk_routing_group
  bool given_as_maxtext = false;      // compat=maxtext: weights of given choices (kernels/moe/route.h)
  bool random_routing = false;
  std::uint32_t random_seed = 0;
  bool expert_bias = false;  // biases of the experts' products (mlp_bias)
  float gate_limit = 0;  // mlp_activations_limit: gate and up are clamped (kernels/moe/expert_gate.h); 0: not
  float gate_alpha = 1;  // factor inside that gate's logistic function

  // Whether an expert is three products, silu and a weight of its output, and nothing more.
  bool plain_experts() const { return !expert_bias && gate_limit == 0 && !weights_on_inputs; }
};

// How the balance loss is taken (moe/balance.h). The values below are ours; compat has others
// (docs/numerics.md).
struct BalanceRule {
  bool divide_by_slots = true;     // an expert's density is divided by K: all together are 1
  bool of_best_scores = false;     // Megatron-LM's: density of the K best scores without bias and groups, and
                                   // the losses of layers are summed, not averaged
  bool softmax_of_scores = false;  // probabilities are a softmax of the router's scores, not their shares
  bool biased = false;             // … of scores with the bias, which then has a gradient
  bool count_padding = false;      // tokens of segment 0 count, here and in counts of rows
  bool by_parts = false;           // of each part of num_moe_token_chunks by itself, then averaged
};

// How the layer is run, and what training makes of it: never part of what a model is.
struct MoeExecution {
  bool sparse = true;
  bool ring = false;
  double ragged_buffer_factor = -1;  // <= 0: dropless
  DropPolicy drop_policy = DropPolicy::fair;
  bool further_passes = false;            // moe_dropless_fallback: rows over the buffer are not dropped, but
                                          // go through the experts in further passes
  double eval_ragged_buffer_factor = -1;  // ragged_buffer_factor of evaluations
  bool keep_rows = false;                 // moe_x_sorted: rows stay for backward as they came to the experts
  std::int64_t token_chunks = 1;
  std::int64_t emb_chunks = 1;                // parts of M whose up projections add up
  double capacity_factor = -1;                // dense path; <= 0: every expert on every token
  bool dispatch_without_expert_axes = false;  // moe_dispatch_no_expert_sharding
  bool float32_gate_logits = false;
  std::optional<float> combine_gradient_bound =
      {};                           // of gradients in 8 bits (moe/combine_gradient.h); none: as they are
  bool weights_at_combine = false;  // the routing weight multiplies the down output, not the activation;
                                    // has no say with weights_on_inputs

  double balance_weight = 0;  // load_balance_loss_weight; 0: no such loss
  BalanceRule balance = {};

  std::shared_ptr<RoutingTape> tape = nullptr;  // this rank's; null: the router chooses, nothing is recorded
};

struct MoeWeights {
  Array gate;             // [M,E]
  Array gate_bias;        // [E] f32, undefined without routed_bias
  Linear wi_0, wi_1;      // [E,M,H]: gate and up projections; biases [E,H], undefined without mlp_bias
  Linear wo;              // [E,H,M]; bias [E,M], undefined without mlp_bias
  Array logit_bias = {};  // [E], undefined without one
};

// Decisions for the local tokens.
struct Routing {
  Array ids;             // i32 [B,S,K]; -1: the slot goes to no expert
  Array weights;         // f32 [B,S,K]
  bool all_used = true;  // no id is -1
};

// Counts of one layer's forward. Summed over all ranks of the run they are the global counts: a rank that
// only repeats another's tokens holds zeros.
struct LayerLoad {
  std::int64_t layer = 0;
  Tensor counted;               // i32 [E], on the device: the rows until read_loads (moe/balance.h)
  std::vector<double> rows;     // rows that chose each expert, before dropping, padding left out
  std::vector<double> dropped;  // rows of each expert that found no room
  std::int64_t passes = 1;      // through the experts, of the chunk of tokens that took most
  double shard_load = 0;        // most rows of a chunk for this rank's experts, over the balanced share
};

}  // namespace switchyard

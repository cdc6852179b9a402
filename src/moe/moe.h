// The MoE layer's vocabulary: its configuration, how it runs,
// its weights, the router's decisions, and what is measured.
//
// Shapes: B batch, S sequence, M emb_dim, H moe_mlp_dim, E experts, K slots (experts per token), R rows on
// this rank. A row holds one (token, expert) assignment: the token's vector, or what an expert makes of it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "autograd/array.h"
#include "kernels/moe/expert_gate.h"
#include "kernels/moe/router_scores.h"
#include "ops/linear.h"

namespace switchyard {

class RoutingTape;

enum class DropPolicy { fair, prefix };

// The function that the layer computes. How the layer runs is in MoeExecution.
struct MoeConfig {
  std::int64_t experts = 0;
  std::int64_t slots = 0;  // num_experts_per_tok
  RouterScore score = RouterScore::none;
  bool softmax_over_selected = true;  // weights: softmax of the K selected logits (mixtral)
  bool normalise = false;             // divides weights by their sum over the K slots
  float normalise_epsilon = 0;        // added to that sum
  float scaling = 1;                  // routed_scaling_factor
  bool choose_by_logit = false;       // experts are chosen by logits, whatever the weights come from (llama4)
  bool weights_on_inputs = false;     // a weight multiplies its expert's input, not its output (llama4)
  bool bias = false;                  // a bias for the choice only (routed_bias)
  bool logit_bias = false;            // a bias added to the logits (gpt-oss)
  bool weights_include_bias = false;  // compat=maxtext, by the model's name
  std::int64_t groups = 0;            // n_routing_groups, 0 = not group-limited
  std::int64_t kept_groups = 0;       // topk_routing_group
  bool groups_by_two_best = false;    // a group scores its two best also where scores are a softmax
  bool given_as_maxtext = false;      // compat=maxtext: weights of given choices (kernels/moe/route.h)
  bool random_routing = false;
  std::uint32_t random_seed = 0;
  bool expert_bias = false;  // biases of the experts' projections (mlp_bias)
  float gate_limit = 0;      // mlp_activations_limit: clamps gate and up (kernels/moe/expert_gate.h); 0: no
  float gate_alpha = 1;      // factor inside that gate's sigmoid
  GateClamp gate_clamp = GateClamp::gpt_oss;
  float shared_limit = 0;  // the same limit of the shared experts, with gate_clamp and without alpha; 0: no

  // True when an expert is just three matrix products and silu, with its weight applied to its output.
  bool plain_experts() const { return !expert_bias && gate_limit == 0 && !weights_on_inputs; }
  GateForm gate_form() const { return {gate_limit, gate_alpha, weights_on_inputs, gate_clamp}; }

  bool operator==(const MoeConfig&) const = default;
};

// How the balance loss is computed (moe/balance.h). The default values
// here are ours; compat=maxtext sets others (docs/numerics.md).
struct BalanceRule {
  bool divide_by_slots = true;     // an expert's density is divided by K, so all densities add up to 1
  bool of_best_scores = false;     // Megatron-LM's: density of the K best scores without bias and groups, and
                                   // the losses of layers are summed, not averaged
  bool softmax_of_scores = false;  // probabilities are a softmax of the router's scores, not their shares
  bool biased = false;             // … of scores with the bias, which then has a gradient
  bool count_padding = false;      // tokens of segment 0 choose experts, and count here and in row counts
  bool by_parts = false;           // each of num_moe_token_chunks chunks alone, then averaged
};

// How the layer runs, and its settings for training. No field here changes which model it is.
struct MoeExecution {
  bool sparse = true;
  bool ring = false;
  double ragged_buffer_factor = -1;  // of the balanced share of the rows that there are; <= 0: dropless
  DropPolicy drop_policy = DropPolicy::fair;
  bool further_passes = false;            // moe_dropless_fallback: rows beyond the buffer are not dropped,
                                          // but go through the experts in further passes
  double eval_ragged_buffer_factor = -1;  // ragged_buffer_factor for evaluations
  bool keep_rows = false;                 // moe_x_sorted: the experts' input rows are kept for backward
  std::int64_t token_chunks = 1;
  std::int64_t emb_chunks = 1;                // chunks of M whose up projections are summed
  double capacity_factor = -1;                // dense path; <= 0: every expert on every token
  bool dispatch_without_expert_axes = false;  // moe_dispatch_no_expert_sharding
  bool float32_gate_logits = false;
  std::optional<float> combine_gradient_bound =
      {};                           // 8-bit gradients (moe/combine_gradient.h); none: not rounded
  bool weights_at_combine = false;  // the routing weight multiplies the down output, not the activation;
                                    // no effect with weights_on_inputs

  double balance_weight = 0;  // load_balance_loss_weight; 0: no such loss
  BalanceRule balance = {};

  std::shared_ptr<RoutingTape> tape = nullptr;  // this rank's; null: the router chooses, nothing is recorded
};

struct MoeWeights {
  Linear gate;            // [M,E], the router
  Array gate_bias;        // [E] f32, undefined without routed_bias
  Linear wi_0, wi_1;      // [E,M,H]: gate and up projections; biases [E,H], undefined without mlp_bias
  Linear wo;              // [E,H,M]; bias [E,M], undefined without mlp_bias
  Array logit_bias = {};  // [E], undefined without one
};

// The router's decisions for the local tokens. A token of segment 0 (padding) has no expert in any slot, so
// no row of it is sent, computed, dropped or counted.
struct Routing {
  Array ids;      // i32 [B,S,K]; -1: no expert in this slot
  Array weights;  // f32 [B,S,K]; 0 without an expert
};

// Counts of one layer's forward pass. Their sums over all ranks of the run are the global counts: a rank that
// only repeats another rank's tokens holds zeros.
struct LayerLoad {
  std::int64_t layer = 0;
  Tensor counted;               // i32 [E], on the device: the row counts until read_loads (moe/balance.h)
  std::vector<double> rows;     // assignments to each expert, before dropping, without padding
  std::vector<double> dropped;  // assignments of each expert that were dropped
  std::int64_t passes = 1;      // passes through the experts; the most of any chunk of tokens
  double shard_load = 0;  // most rows in a chunk for this rank's experts, over the balanced share of rows
};

}  // namespace switchyard

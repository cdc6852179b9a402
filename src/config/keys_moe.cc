// The MoE layer: experts, router, balance, and how rows travel.
#include "config/declaration.h"

namespace switchyard {

std::vector<KeyDeclaration> moe_keys() {
  return {
      integer_key("num_experts", 1, at_least(1), "experts of a layer (E); 1: a dense model"),
      integer_key("num_experts_per_tok", 1, at_least(1), "experts a token goes to (K)"),
      integer_key("base_moe_mlp_dim", -1, at_least_or(1, -1), "width of an expert (H); -1: base_mlp_dim"),
      integer_key("moe_expert_input_dim", -1, at_least_or(1, -1),
                  "width experts take and give (qwen3_custom_moe); -1: base_emb_dim"),
      integer_key("first_num_dense_layers", 0, at_least(0), "layers before the first MoE layer"),
      integer_list_key("moe_layers", {}, "numbers of the layers with experts; empty: all but those first"),
      integer_key("shared_experts", 0, at_least(0), "experts every token goes to"),
      integer_key("shared_expert_mlp_dim", 0, at_least(0),
                  "width of all of them together; 0: of each as of the others"),
      integer_key("interleave_moe_layer_step", 1, at_least(1),
                  "llama4, envy: every how many layers an MoE layer stands"),
      planned(integer_key("first_num_hash_layers", 0, at_least(0), "layers routed by a hash of the token")),
      boolean_key("mlp_bias", false, "biases of the experts' products"),
      choice_key("routed_score_func", "", one_of({"", "softmax", "sigmoid", "sqrtsoftplus"}),
                 "scores of the router; empty: softmax over the selected logits; sqrtsoftplus: √ln(1 + e^x)"),
      boolean_key("routed_bias", false, "a bias per expert that counts for selection only"),
      float_key("routed_bias_update_rate", 0.0, at_least(0), "step of that bias towards balance; 0: none"),
      float_key("routed_scaling_factor", 1.0, any_number(), "factor of the routing weights"),
      boolean_key("norm_topk_prob", false, "divide the selected probabilities by their sum"),
      integer_key("n_routing_groups", -1, at_least_or(1, -1), "groups of experts; -1: no group limit"),
      integer_key("topk_routing_group", -1, at_least_or(1, -1), "groups a token may choose from"),
      boolean_key("float32_gate_logits", false, "router logits in float32"),
      boolean_key("use_random_routing", false, "uniformly drawn experts, for measurements"),
      text_key("routing_record", "",
               "file that gets the experts of every token that `train`, `generate` or `serve` route "
               "(docs/formats.md); empty: none"),
      text_key("routing_replay", "",
               "such a file: `train` and `verify` send each token to the experts that it names for the same "
               "text, weighted by the router's scores of now; empty: the router chooses"),
      float_key("load_balance_loss_weight", 0.0, at_least(0), "weight of the balance loss"),
      boolean_key("moe_use_megatron_seq_aux_loss", false,
                  "the balance loss of sigmoid routers is Megatron-LM's: of the K best scores without bias and "
                  "groups, summed over layers; others keep theirs"),
      text_key("moe_quantize_combine_bwd_method", "",
               "ring of experts: gradients of the outputs go to the experts as float8_e5m2; rowwise: a scale a "
               "token; fixed,B: one scale, B the largest magnitude; empty: as they are"),
      boolean_key("log_moe_bias_norms", false,
                  "log the norm of each router's bias before the step's update, and of the update"),
      boolean_key("sparse_matmul", true, "rows sorted by expert and grouped products; false: the dense path"),
      float_key("capacity_factor", -1.0, any_number(),
                "dense path: rows an expert takes of a sequence, over the balanced share; not above 0: all"),
      boolean_key("use_ring_of_experts", false, "gather tokens over the expert axis instead of sending rows"),
      float_key("ragged_buffer_factor", -1.0, more_than_or(0, -1),
                "rows a rank accepts, over its balanced share; -1: all"),
      choice_key(
          "ragged_drop_policy", "fair", one_of({"fair", "prefix"}),
          "which rows are dropped over ragged_buffer_factor: the same share of each expert, or the last"),
      optional(choice_key(
          "moe_dropless_fallback", "", one_of({"step", "layer"}),
          "rows over ragged_buffer_factor: None drops them; layer, and step alike, take them through the "
          "experts in further passes of at most so many rows, with the results of ragged_buffer_factor=-1")),
      float_key("eval_ragged_buffer_factor", -1.0, more_than_or(0, -1),
                "ragged_buffer_factor of evaluations; -1: all rows, or, with moe_dropless_fallback or "
                "compat=maxtext, that of training"),
      boolean_key("log_required_ragged_buffer_factor", false,
                  "a metric of each step and MoE layer: the least ragged_buffer_factor that drops nothing"),
      boolean_key("moe_log_max_load_ratio", false,
                  "metrics of each step: that factor of the MoE layer with the largest, and the mean of all"),
      inert(integer_key("retry_dropless_first_steps", 0, at_least(0),
                        "steps that start without a cap under moe_dropless_fallback=step; nothing is ever "
                        "replayed here")),
      inert(float_key("first_phase_ragged_buffer_factor", 0.0, any_number(),
                      "cap of retry_dropless_first_steps, which are like all others here")),
      integer_key("num_moe_token_chunks", 1, at_least(1),
                  "parts of the sequence that go through the layer in turn"),
      integer_key("num_moe_emb_chunks", 0, at_least(0),
                  "parts of the width whose up projections add up, each gathered or sent by itself; 0: one"),
      boolean_key("moe_dispatch_no_expert_sharding", false,
                  "dense path: send tokens over the expert axis instead of gathering weights"),
      boolean_key("shard_exp_on_fsdp", false,
                  "fsdp splits the expert dim of the experts' weights, not their width"),
      inert(boolean_key(
          "moe_fsdp_use_two_stage_all_gather", false,
          "fsdp and fsdp_transpose split different dims, which are gathered one after the other")),
      planned(boolean_key("use_2d_fsdp_sharding", false, "split two dims of expert weights over fsdp axes")),
      choice_key("expert_shard_attention_option", "fsdp", one_of({"fsdp", "context", "tp"}),
                 "what the expert axis does outside the MoE block: fsdp as the rules have it, context means "
                 "custom_mesh_and_rule=ep-as-cp, tp means ep-tp"),
      inert(boolean_key("use_batch_split_schedule", false,
                        "a schedule of the reference; no effect on the result")),
      inert(integer_key("batch_split_factor", 1, at_least(1), "only with use_batch_split_schedule")),
      inert(boolean_key("megablox", true, "grouped products have one implementation here")),
      inert(boolean_key("use_custom_sort_vjp", true, "our sort always has its own gradient")),
      inert(boolean_key("use_ragged_sort", false, "our sort is always ragged")),
      inert(boolean_key("moe_chunk_barrier", false, "a hint to XLA's scheduler")),
      inert(boolean_key("float32_weight_sum", true, "our weighted sums are always in float32")),
      inert(boolean_key("merge_gating_gmm", false, "our gate and up projections read a row once")),
  };
}

}  // namespace switchyard

// Declares keys of the MoE layer: experts, router, balance, and dispatch.
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
      number_list_key(
          "expert_gate_limits", {},
          "a number a layer at which the experts' gates and ups are clamped, 0: none; empty: none"),
      number_list_key("shared_gate_limits", {},
                      "the same of shared experts, and of the MLPs of layers without experts"),
      choice_key("expert_gate_clamp", "before", one_of({"before", "after"}),
                 "with those limits: a gate is clamped before silu, or silu of it is"),
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
      with_role(KeyRole::training, float_key("routed_bias_update_rate", 0.0, at_least(0),
                                             "step of that bias towards balance; 0: none")),
      float_key("routed_scaling_factor", 1.0, any_number(), "factor of the routing weights"),
      boolean_key("norm_topk_prob", false, "divide the selected probabilities by their sum"),
      integer_key("n_routing_groups", -1, at_least_or(1, -1), "groups of experts; -1: no group limit"),
      integer_key("topk_routing_group", -1, at_least_or(1, -1), "groups a token may choose from"),
      boolean_key("float32_gate_logits", false, "router logits in float32"),
      boolean_key("use_random_routing", false, "uniformly drawn experts, for measurements"),
      with_role(KeyRole::output, text_key("routing_record", "",
                                          "file that gets the experts of every token that `train`, "
                                          "`generate` or `serve` route (docs/run-files.md); empty: none")),
      with_role(KeyRole::training,
                text_key("routing_replay", "",
                         "such a file: `train` and `verify` send each token to the experts that it names for "
                         "the same text, weighted by the router's scores of now; empty: the router chooses")),
      with_role(KeyRole::training,
                float_key("load_balance_loss_weight", 0.0, at_least(0), "weight of the balance loss")),
      with_role(KeyRole::training,
                boolean_key("moe_use_megatron_seq_aux_loss", false,
                            "the balance loss of sigmoid routers is Megatron-LM's: of the K best scores "
                            "without bias and groups, summed over layers; others keep theirs")),
      with_role(
          KeyRole::output,
          boolean_key("log_moe_bias_norms", false,
                      "log the norm of each router's bias before the step's update, and of the update")),
  };
}

std::vector<KeyDeclaration> strategy_keys() {
  return {
      boolean_key("sparse_matmul", true, "rows sorted by expert and grouped products; false: the dense path"),
      dense_only(float_key(
          "capacity_factor", -1.0, any_number(),
          "dense path: rows an expert takes of a sequence, over the balanced share; not above 0: all")),
      sparse_only(boolean_key("use_ring_of_experts", false,
                              "gather tokens over the expert axis instead of sending rows")),
      sparse_only(
          text_key("moe_quantize_combine_bwd_method", "",
                   "ring of experts: gradients of the outputs go to the experts as float8_e5m2; rowwise: a "
                   "scale a token; fixed,B: one scale, B the largest magnitude; empty: as they are")),
      sparse_only(float_key("ragged_buffer_factor", -1.0, more_than_or(0, -1),
                            "rows a rank accepts, over its balanced share; -1: all")),
      sparse_only(choice_key(
          "ragged_drop_policy", "fair", one_of({"fair", "prefix"}),
          "which rows are dropped over ragged_buffer_factor: the same share of each expert, or the last")),
      sparse_only(optional(choice_key(
          "moe_dropless_fallback", "", one_of({"step", "layer"}),
          "rows over ragged_buffer_factor: None drops them; layer, and step alike, take them through the "
          "experts in further passes of at most so many rows, with the results of ragged_buffer_factor=-1"))),
      sparse_only(float_key("eval_ragged_buffer_factor", -1.0, more_than_or(0, -1),
                            "ragged_buffer_factor of evaluations; -1: all rows, or, with "
                            "moe_dropless_fallback or compat=maxtext, that of training")),
      with_role(
          KeyRole::output,
          sparse_only(boolean_key(
              "log_required_ragged_buffer_factor", false,
              "a metric of each step and MoE layer: the least ragged_buffer_factor that drops nothing"))),
      with_role(
          KeyRole::output,
          sparse_only(boolean_key(
              "moe_log_max_load_ratio", false,
              "metrics of each step: that factor of the MoE layer with the largest, and the mean of all"))),
      inert(integer_key(
          "retry_dropless_first_steps", 0, at_least(0),
          "steps that start without a cap under moe_dropless_fallback=step; nothing is ever replayed here")),
      inert(float_key("first_phase_ragged_buffer_factor", 0.0, any_number(),
                      "cap of retry_dropless_first_steps, which are like all others here")),
      sparse_only(integer_key("num_moe_token_chunks", 1, at_least(1),
                              "parts of the sequence that go through the layer in turn")),
      sparse_only(integer_key(
          "num_moe_emb_chunks", 0, at_least(0),
          "parts of the width whose up projections add up, each gathered or sent by itself; 0: one")),
      dense_only(boolean_key("moe_dispatch_no_expert_sharding", false,
                             "dense path: send tokens over the expert axis instead of gathering weights")),
      boolean_key("shard_exp_on_fsdp", false,
                  "fsdp splits the expert dim of the experts' weights, not their width"),
      inert(boolean_key(
          "moe_fsdp_use_two_stage_all_gather", false,
          "fsdp and fsdp_transpose split different dims, which are gathered one after the other")),
      planned(boolean_key("use_2d_fsdp_sharding", false, "split two dims of expert weights over fsdp axes")),
      planned(boolean_key("shard_embed_moe_on_fsdp", false,
                          "gather quantized expert weights over fsdp by hand; needs quantization")),
      planned(boolean_key("moe_quantize_token_all_gather", false,
                          "the ring gathers tokens in few bits; rounds them")),
      planned(boolean_key("te_moe_block", false, "an MoE block of TransformerEngine, for GPUs")),
      planned(text_key("te_gmm_quantization", "", "grouped products of TransformerEngine in few bits")),
      inert(integer_key("te_ep_overflow_check_every_n_steps", 20, at_least(1), "only with te_moe_block")),
      planned(boolean_key("use_lineage", false, "another backend of the reference for deepseek")),
      with_role(KeyRole::layout,
                choice_key("expert_shard_attention_option", "fsdp", one_of({"fsdp", "context", "tp"}),
                           "what the expert axis does outside the MoE block: fsdp as the rules have it, "
                           "context means custom_mesh_and_rule=ep-as-cp, tp means ep-tp")),
      inert(boolean_key("use_batch_split_schedule", false,
                        "a schedule of the reference; no effect on the result")),
      inert(integer_key("batch_split_factor", 1, at_least(1), "only with use_batch_split_schedule")),
      inert(boolean_key("megablox", true, "grouped products have one implementation here")),
      inert(boolean_key("use_custom_sort_vjp", true, "our sort always has its own gradient")),
      inert(boolean_key("use_ragged_sort", false, "our sort is always ragged")),
      inert(boolean_key("moe_chunk_barrier", false, "a hint to XLA's scheduler")),
      inert(boolean_key("float32_weight_sum", true, "our weighted sums are always in float32")),
      inert(boolean_key("merge_gating_gmm", false, "our gate and up projections read a row once")),
      inert(boolean_key("prefuse_moe_weights", false,
                        "how the reference's inference stores gate and up projections")),
      inert(boolean_key("fuse_expert_scales", false,
                        "how the reference's inference applies factors of experts; the same products")),
      inert(boolean_key("moe_topk_before_ep_all_gather", false,
                        "our ring always gathers chosen experts and weights, never logits")),
      inert(boolean_key("moe_use_direct_token_gather", false,
                        "our rows are always gathered straight into the order of experts")),
      inert(boolean_key("router_topk_matmul_vjp", false, "another way to the same gradient")),
      inert(boolean_key("defer_small_all_reduces", false,
                        "when the reference sums counts of tokens; the same sums")),
      inert(boolean_key("warmup_programs_in_init", false, "when the reference compiles")),
  };
}

}  // namespace switchyard

// Tests command lines and case configs of the reference, as users paste them.
#include <sstream>

#include "config/test_support.h"

namespace switchyard {
namespace {

std::vector<std::string> words(const std::string& line) {
  std::istringstream stream(line);
  std::vector<std::string> list;
  for (std::string word; stream >> word;) list.push_back(word);
  return list;
}

// The command of the reference's refactoring of sparse_matmul; its table's rows differ in the keys appended.
const char* const tiny_deepseek =
    "src/maxtext/configs/base.yml model_name=deepseek3-tiny override_model_config=True "
    "base_num_decoder_layers=1 "
    "first_num_dense_layers=0 per_device_batch_size=1.0 max_target_length=1024 dcn_pipeline_parallelism=1 "
    "dcn_data_parallelism=-1 ici_pipeline_parallelism=1 ici_fsdp_transpose_parallelism=1 "
    "ici_fsdp_parallelism=1 "
    "ici_expert_parallelism=-1 allow_split_physical_axes=True use_iota_embed=True remat_policy=custom "
    "decoder_layer_input=offload opt_type=adamw mu_dtype=bfloat16 grad_dtype=bfloat16 dtype=bfloat16 "
    "weight_dtype=bfloat16 "
    "use_random_routing=True megablox=True sparse_matmul=True use_custom_sort_vjp=True "
    "use_ring_of_experts=True "
    "use_ragged_sort=False shard_exp_on_fsdp=False sa_use_fused_bwd_kernel=True sa_block_q=2048 "
    "sa_block_kv=2048 "
    "sa_block_q_dkv=512 sa_block_kv_dkv=512 sa_block_kv_dkv_compute=512 sa_block_kv_dq=512 sa_block_q_dq=512 "
    "attention=flash use_tokamax_splash=False use_max_logit_estimate=-1 "
    "cost_estimate_flops_fwd=5000000000000 "
    "cost_estimate_flops_bwd=5000000000000 float32_weight_sum=False use_tokamax_gmm=False "
    "tokenizer_type=huggingface "
    "tokenizer_path=deepseek-ai/DeepSeek-V3 dataset_type=synthetic dataset_path=gs://max-datasets-rogue "
    "enable_checkpointing=False check_vma=False steps=20 attention=dot_product log_config=true "
    "base_output_directory= "
    "run_name= ";

struct Row {
  const char* keys;
  bool sparse;
  bool ring;
  std::int64_t expert;
  std::int64_t fsdp;
};

TEST(ReferenceCommands, FiveModesOfTinyDeepseek) {
  const Row rows[] = {
      {"sparse_matmul=True use_ring_of_experts=True ici_expert_parallelism=-1", true, true, -1, 1},
      {"sparse_matmul=True use_ring_of_experts=False ici_expert_parallelism=-1", true, false, -1, 1},
      {"sparse_matmul=True use_ring_of_experts=False ici_expert_parallelism=1 ici_fsdp_parallelism=-1", true,
       false, 1, -1},
      {"sparse_matmul=False use_ring_of_experts=False ici_expert_parallelism=1 ici_fsdp_parallelism=-1",
       false, false, 1, -1},
      {"sparse_matmul=False use_ring_of_experts=False ici_expert_parallelism=-1 ici_fsdp_parallelism=1",
       false, false, -1, 1},
  };
  for (const Row& row : rows) {
    const Config config = config_of(words(std::string(tiny_deepseek) + row.keys + " ranks=8"));
    EXPECT_EQ(config.get_bool("sparse_matmul"), row.sparse);
    EXPECT_EQ(config.get_bool("use_ring_of_experts"), row.ring);
    EXPECT_EQ(config.get_int("ici_expert_parallelism"), row.expert);
    EXPECT_EQ(config.get_int("ici_fsdp_parallelism"), row.fsdp);
    EXPECT_EQ(config.get_int("ranks"), 8);
    EXPECT_EQ(config.get_int("base_num_decoder_layers"), 1);
    EXPECT_EQ(config.get_string("attention"), "dot_product");
    EXPECT_EQ(config.get_string("decoder_layer_input"), "offload");
    EXPECT_EQ(config.get_string("base_output_directory"), "./switchyard_output");
    EXPECT_TRUE(notices_mention(config, {"attention", "more than once"}));
    EXPECT_TRUE(notices_mention(config, {"inert", "sa_block_q", "megablox", "allow_split_physical_axes"}));
  }
}

// smoke_moe of the EP-TP proof of concept, aliases expanded, without the two keys of EP-TP itself.
TEST(ReferenceCommands, SmokeMoe) {
  const Config config = config_of(words(
      "maxtext/configs/base.yml run_name=mattdavidow-train-base "
      "base_output_directory=gs://maxtext-experiments-multipod dataset_path=gs://max-datasets-rogue "
      "dataset_type=synthetic "
      "steps=5 enable_checkpointing=False enable_goodput_recording=False decoder_block=mixtral num_experts=4 "
      "num_experts_per_tok=2 sparse_matmul=True megablox=True per_device_batch_size=4 "
      "base_num_decoder_layers=4 "
      "ici_data_parallelism=2 ici_expert_parallelism=4 use_ring_of_experts=True num_experts=8 "
      "per_device_batch_size=2 "
      "profiler=xplane ranks=8 base_num_decoder_layers=2 weight_dtype=bfloat16 mu_dtype=bfloat16"));
  EXPECT_EQ(config.get_int("num_experts"), 8);
  EXPECT_EQ(config.get_float("per_device_batch_size"), 2);
  EXPECT_EQ(config.get_string("base_output_directory"), "./maxtext-experiments-multipod");
  EXPECT_TRUE(notices_mention(config, {"num_experts", "more than once", "8"}));
  EXPECT_TRUE(notices_mention(config, {"inert", "enable_goodput_recording"}));
}

TEST(CaseConfigs, TrainingRun) {
  const std::map<std::string, nlohmann::json> keys = {{"run_name", "deepseek3_fsdp8"},
                                                      {"model_name", "deepseek3-tiny"},
                                                      {"override_model_config", true},
                                                      {"base_emb_dim", 64},
                                                      {"base_num_decoder_layers", 3},
                                                      {"first_num_dense_layers", 1},
                                                      {"base_mlp_dim", 112},
                                                      {"base_moe_mlp_dim", 24},
                                                      {"base_num_query_heads", 4},
                                                      {"base_num_kv_heads", 4},
                                                      {"vocab_size", 256},
                                                      {"num_experts", 8},
                                                      {"num_experts_per_tok", 2},
                                                      {"n_routing_groups", 4},
                                                      {"topk_routing_group", 2},
                                                      {"q_lora_rank", 32},
                                                      {"kv_lora_rank", 16},
                                                      {"qk_nope_head_dim", 16},
                                                      {"qk_rope_head_dim", 8},
                                                      {"v_head_dim", 16},
                                                      {"head_dim", 16},
                                                      {"routed_bias_update_rate", 0.001},
                                                      {"routed_score_func", "sigmoid"},
                                                      {"routed_bias", true},
                                                      {"load_balance_loss_weight", 0.01},
                                                      {"shared_experts", 1},
                                                      {"norm_topk_prob", false},
                                                      {"learning_rate", 0.003},
                                                      {"learning_rate_schedule_steps", 10},
                                                      {"learning_rate_final_fraction", 0.1},
                                                      {"warmup_steps_fraction", 0.1},
                                                      {"lr_schedule_type", "cosine"},
                                                      {"wsd_decay_steps_fraction", 0.1},
                                                      {"wsd_decay_style", "linear"},
                                                      {"steps", 10},
                                                      {"adam_b1", 0.9},
                                                      {"adam_b2", 0.95},
                                                      {"adam_eps", 1e-8},
                                                      {"adam_eps_root", 0.0},
                                                      {"adam_weight_decay", 0.3},
                                                      {"adamw_mask", nlohmann::json::array()},
                                                      {"opt_type", "adamw"},
                                                      {"muon_beta", 0.95},
                                                      {"muon_weight_decay", 0.0},
                                                      {"muon_consistent_rms", nullptr},
                                                      {"mu_dtype", "float32"},
                                                      {"grad_dtype", "float32"},
                                                      {"dtype", "float32"},
                                                      {"weight_dtype", "float32"},
                                                      {"matmul_precision", "highest"},
                                                      {"gradient_accumulation_steps", 1},
                                                      {"gradient_clipping_threshold", 0.5},
                                                      {"per_device_batch_size", 1},
                                                      {"max_target_length", 32},
                                                      {"packing", true},
                                                      {"attention", "dot_product"},
                                                      {"attention_type", "mla"},
                                                      {"capacity_factor", -1.0},
                                                      {"cast_logits_to_fp32", true},
                                                      {"check_vma", false},
                                                      {"dataset_type", "synthetic"},
                                                      {"decoder_block", "deepseek"},
                                                      {"enable_checkpointing", false},
                                                      {"enable_goodput_recording", false},
                                                      {"float32_gate_logits", true},
                                                      {"float32_logits", true},
                                                      {"float32_qk_product", true},
                                                      {"float32_weight_sum", true},
                                                      {"hardware", "cpu"},
                                                      {"ici_expert_parallelism", 1},
                                                      {"ici_fsdp_parallelism", 8},
                                                      {"init_weights_seed", 0},
                                                      {"log_config", false},
                                                      {"logits_via_embedding", false},
                                                      {"max_position_embeddings", 163840},
                                                      {"megablox", false},
                                                      {"mlp_activations", {"silu", "linear"}},
                                                      {"mscale", 1.0},
                                                      {"normalization_layer_epsilon", 1e-6},
                                                      {"original_max_position_embeddings", 4096},
                                                      {"remat_policy", "full"},
                                                      {"rope_attention_scaling", false},
                                                      {"rope_factor", 40},
                                                      {"rope_interleave", true},
                                                      {"rope_max_timescale", 10000},
                                                      {"rope_truncate", true},
                                                      {"rope_type", "yarn"},
                                                      {"beta_fast", 32},
                                                      {"beta_slow", 1},
                                                      {"routed_scaling_factor", 2.5},
                                                      {"save_config_to_gcs", false},
                                                      {"scan_layers", true},
                                                      {"skip_jax_distributed_system", true},
                                                      {"sparse_matmul", true},
                                                      {"use_tokamax_gmm", false},
                                                      {"z_loss_multiplier", 0.0}};
  const std::vector<std::string> overrides = {"ranks=8", "dtype=float32", "ici_fsdp_parallelism=4",
                                              "compat=maxtext"};
  const Config config = Config::from_map(keys, overrides);
  EXPECT_EQ(config.get_int("base_emb_dim"), 64);
  EXPECT_EQ(config.get_int("ici_fsdp_parallelism"), 4);
  EXPECT_EQ(config.get_string("compat"), "maxtext");
  EXPECT_TRUE(config.is_set_by_user("base_emb_dim"));
  EXPECT_TRUE(
      notices_mention(config, {"inert", "hardware", "check_vma", "matmul_precision", "save_config_to_gcs"}));
  EXPECT_FALSE(notices_mention(config, {"more than once"}));
}

TEST(CaseConfigs, MoeLayer) {
  const std::map<std::string, nlohmann::json> keys = {{"model_name", "qwen3-30b-a3b"},
                                                      {"override_model_config", true},
                                                      {"base_emb_dim", 40},
                                                      {"base_mlp_dim", 16},
                                                      {"base_moe_mlp_dim", 16},
                                                      {"capacity_factor", 1.25},
                                                      {"check_vma", false},
                                                      {"dtype", "float32"},
                                                      {"expert_parallelism", 4},
                                                      {"float32_gate_logits", true},
                                                      {"float32_weight_sum", true},
                                                      {"load_balance_loss_weight", 0.01},
                                                      {"matmul_precision", "highest"},
                                                      {"megablox", true},
                                                      {"num_experts", 12},
                                                      {"num_experts_per_tok", 4},
                                                      {"n_routing_groups", 4},
                                                      {"topk_routing_group", 2},
                                                      {"ragged_gather_fallback", true},
                                                      {"ragged_gather_reduce_fallback", true},
                                                      {"routed_bias_update_rate", 0.0},
                                                      {"routed_scaling_factor", 1.7},
                                                      {"sparse_matmul", true},
                                                      {"use_ragged_sort", true},
                                                      {"use_ring_of_experts", true},
                                                      {"use_tokamax_gmm", false},
                                                      {"weight_dtype", "float32"}};
  const Config config = Config::from_map(keys, {});
  EXPECT_EQ(config.get_int("ici_expert_parallelism"), 4);
  EXPECT_TRUE(config.get_bool("norm_topk_prob"));
  EXPECT_THROW(Config::from_map({{"steps", "x"}}, {}), Error);
  EXPECT_THROW(Config::from_map({{"no_such_key", 1}}, {}), Error);
  EXPECT_THROW(Config::from_map({}, std::vector<std::string>{"stray"}), Error);
}

// Keys that say when or where the reference does what changes no number.
TEST(ReferenceCommands, SchedulesAreInert) {
  const std::vector<std::string> keys{"moe_fsdp_use_two_stage_all_gather",
                                      "dense_fsdp_use_two_stage_all_gather", "pipeline_fsdp_ag_once",
                                      "pipeline_fsdp_ag_per_repeat"};
  std::vector<std::string> settings;
  for (const std::string& key : keys) settings.push_back(key + "=true");
  const Config config = config_of(settings);
  for (const std::string& key : keys) {
    EXPECT_TRUE(config.get_bool(key));
    EXPECT_TRUE(notices_mention(config, {"inert", key})) << key;
  }
}

}  // namespace
}  // namespace switchyard

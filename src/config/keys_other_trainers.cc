// Keys of the reference's trainers that are not built here (preferences, reinforcement learning, LoRA,
// distillation). Their switches are planned; the rest is inert, as it changes nothing without them. The
// reference reads most of them only in programs other than `train`. A group shares its reason.
#include "config/declaration.h"

namespace switchyard {
namespace {

using Json = nlohmann::json;

std::vector<KeyDeclaration> switches() {
  const auto group = [](const std::string& help, std::vector<InertDefault> keys) {
    return planned_group(help, keys);
  };
  std::vector<KeyDeclaration> keys =
      group("a trainer of the reference that is not built", {{"use_grpo", false},
                                                             {"use_agentic_rollout", false},
                                                             {"enable_lora", false},
                                                             {"learn_to_init_mode", false},
                                                             {"use_tunix_gradient_accumulation", false}});
  for (KeyDeclaration& section :
       group("a section of settings for a trainer that is not built", {{"dpo", Json::object()},
                                                                       {"lora", Json::object()},
                                                                       {"rl", Json::object()},
                                                                       {"cluster", Json::object()},
                                                                       {"dataset", Json::object()},
                                                                       {"evaluation", Json::object()},
                                                                       {"reward", Json::object()},
                                                                       {"special_tokens", Json::object()},
                                                                       {"vllm", Json::object()}}))
    keys.push_back(std::move(section));
  return keys;
}

std::vector<InertDefault> reinforcement_keys() {
  return {{"loss_algo", "grpo"},
          {"loss_agg_mode", "sequence-mean-token-mean"},
          {"grpo_beta", 0.08},
          {"grpo_epsilon", 0.2},
          {"epsilon_high", nullptr},
          {"force_on_policy_ratio", false},
          {"use_rollout_logps", true},
          {"log_sampler_trainer_agreement", false},
          {"num_generations", 2},
          {"num_iterations", 1},
          {"max_concurrency", 256},
          {"off_policy_steps", 0},
          {"reshard_chunk_size", nullptr},
          {"batch_size", 1},
          {"num_batches", 4},
          {"num_test_batches", 5},
          {"test_batch_start_index", 0},
          {"train_fraction", 1.0},
          {"train_micro_batch_size", -1},
          {"rollout_micro_batch_size", -1},
          {"max_seq_token_per_tpu", 0},
          {"hf_subset", nullptr},
          {"dataset_processor_path", ""},
          {"data_template_path", ""},
          {"eval_batch_size", -1},
          {"eval_mode", "pass"},
          {"eval_sampling_strategy", "greedy"},
          {"eval_corr_lst", false},
          {"eval_make_lst", false},
          {"num_eval_passes", 1},
          {"generation_configs", Json::object()},
          {"reward_functions", ""},
          {"reward_functions_path", ""},
          {"reward_num_workers", 0},
          {"reward_worker_timeout_seconds", 180.0},
          {"reward_exact_answer", 5.0},
          {"reward_exact_format_match", 3.0},
          {"reward_partial_format_match", 0.5},
          {"reward_white_space_format_match", 1.5},
          {"reward_ratio_guess_to_answer_high", 0.5},
          {"reward_ratio_guess_to_answer_low", 0.25},
          {"penalty_incorrect_answer", -1.0},
          {"penalty_incorrect_format", -0.5},
          {"math_verify_num_procs", nullptr},
          {"math_verify_timeout", 300},
          {"reasoning_start_token", "<reasoning>"},
          {"reasoning_end_token", "</reasoning>"},
          {"reasoning_start_token_in_prompt", false},
          {"solution_start_token", "<answer>"},
          {"solution_end_token", "</answer>"},
          {"debug", false},
          {"enable_tunix_perf_metrics", false}};
}

// Machines of reinforcement learning, and how they hand weights over.
std::vector<InertDefault> rollout_keys() {
  return {{"chips_per_vm", 4},
          {"num_trainer_slices", -1},
          {"num_samplers_slices", -1},
          {"trainer_devices_fraction", 0.5},
          {"sampler_devices_fraction", 0.5},
          {"rollout_data_parallelism", -1},
          {"rollout_tensor_parallelism", -1},
          {"rollout_expert_parallelism", 1},
          {"inference_devices_per_replica", 4},
          {"inference_replicas", 1},
          {"inference_rollouts", 1},
          {"use_pathways", true},
          {"use_pathways_reshard", true},
          {"gc_collect_after_weight_sync", true},
          {"rollout_backend", "maxtext"},
          {"use_raiden_ffi", nullptr},
          {"use_weight_converter", true},
          {"use_standalone_converter", false},
          {"weight_sync_debug", false},
          {"log_weight_sync_time", false},
          {"debug_converter", false},
          {"gcs_debug_path", ""}};
}

std::vector<InertDefault> vllm_keys() {
  return {{"vllm_hf_config_path", ""},
          {"vllm_hf_overrides", Json::object()},
          {"vllm_additional_config", Json::object()},
          {"vllm_load_format", "dummy"},
          {"vllm_block_size", nullptr},
          {"kv_tp_size", 1},
          {"moe_mlp_tp_size", 1},
          {"async_scheduling", false},
          {"enable_dp_attention", false},
          {"enable_expert_parallel", false},
          {"free_kv_cache_during_weight_sync", true},
          {"hbm_utilization_vllm", 0.72},
          {"kv_cache_buffer", 256},
          {"max_num_batched_tokens", nullptr},
          {"max_num_seqs", nullptr},
          {"stop_strings", Json::array()},
          {"swap_space_vllm_gb", 2},
          {"gdn_mamba_block_size", 0}};
}

std::vector<InertDefault> distillation_keys() {
  return {{"distill_alpha", 0.5},
          {"distill_temperature", 1.0},
          {"distill_beta", 0.0},
          {"distill_feature_loss_type", "cosine"},
          {"distill_layer_indices", nullptr},
          {"distill_alpha_end", nullptr},
          {"distill_alpha_schedule", "constant"},
          {"distill_temperature_end", nullptr},
          {"distill_temperature_schedule", "constant"},
          {"distill_beta_end", nullptr},
          {"distill_beta_schedule", "constant"},
          {"distill_student_weights_share_map", Json::object()},
          {"distill_weights_copy_map", Json::object()},
          {"student_overrides", Json::object()},
          {"student_params_to_update", Json::array()},
          {"teacher_overrides", Json::object()},
          {"offline_data_dir", nullptr},
          {"attn_module_name", nullptr},
          {"lti_layer_indices", Json::array()},
          {"lti_use_general_linear_map", false}};
}

}  // namespace

std::vector<KeyDeclaration> other_trainer_keys() {
  std::vector<KeyDeclaration> keys = switches();
  const auto add = [&](const std::string& help, const std::vector<InertDefault>& group) {
    for (KeyDeclaration& key : inert_group(help, group)) keys.push_back(std::move(key));
  };
  add("only with use_dpo", {{"algo", "dpo"},
                            {"dpo_beta", 0.1},
                            {"dpo_label_smoothing", 0.0},
                            {"orpo_lambda", 0.1},
                            {"max_prompt_length", nullptr}});
  add("only with use_sft", {{"formatting_func_path", ""}, {"formatting_func_kwargs", Json::object()}});
  add("only with enable_lora", {{"lora_rank", 0},
                                {"lora_alpha", 0.0},
                                {"lora_module_path", ""},
                                {"lora_restore_path", ""},
                                {"lora_tile_size", nullptr},
                                {"lora_weight_qtype", nullptr}});
  add("of the reference's program for reinforcement learning", reinforcement_keys());
  add("machines of the reference's program for reinforcement learning", rollout_keys());
  add("of the reference's way through vLLM", vllm_keys());
  add("of the reference's distillation trainer", distillation_keys());
  return keys;
}

}  // namespace switchyard

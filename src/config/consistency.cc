// Checks between keys, made once when a config is loaded. Mesh sizes are checked where the mesh is built.
#include <fmt/ranges.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "config/builder.h"
#include "config/declaration.h"
#include "config/decoder_block.h"
#include "core/error.h"

namespace switchyard {

void check_axis_name(const std::string& axis) {
  const std::string size = "ici_" + (axis == "stage" ? "pipeline" : axis) + "_parallelism";
  if (find_key(size) == nullptr) {
    fail_usage("[config] mesh_axes: expected axes that have a key for their size, got {} (there is no {})",
               axis, size);
  }
}

namespace {

void check_heads(const Config& config) {
  const auto query_heads = config.get_int("base_num_query_heads");
  const auto kv_heads = config.get_int("base_num_kv_heads");
  if (query_heads % kv_heads != 0) {
    fail_usage("[config] base_num_query_heads={} must be a multiple of base_num_kv_heads={}", query_heads,
               kv_heads);
  }
  const bool is_mla = config.get_string("attention_type") == "mla";
  const char* rotated = is_mla ? "qk_rope_head_dim" : "head_dim";
  if (config.get_int(rotated) % 2 != 0) {
    fail_usage("[config] {}={} must be even: positions rotate pairs", rotated, config.get_int(rotated));
  }
  if (!is_mla) return;
  for (const char* key : {"kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"}) {
    if (config.get_int(key) == 0) fail_usage("[config] {}=0: attention_type=mla needs at least 1", key);
  }
}

void check_start(const Config& config) {
  if (!config.is_none("load_parameters_path") && !config.is_none("load_full_state_path")) {
    fail_usage(
        "[config] load_parameters_path={} and load_full_state_path={}: expected one of them at most, as both "
        "say what to start from",
        config.get_string("load_parameters_path"), config.get_string("load_full_state_path"));
  }
}

void check_experts(const Config& config) {
  const auto experts = config.get_int("num_experts");
  const auto chosen = config.get_int("num_experts_per_tok");
  if (chosen > experts) fail_usage("[config] num_experts_per_tok={} exceeds num_experts={}", chosen, experts);
  const DecoderBlock& block = decoder_block(config.get_string("decoder_block"));
  if (experts > 1 && !block.experts)
    fail_usage("[config] num_experts={}: decoder_block={} has no experts; expected {}", experts, block.name,
               blocks_with(&DecoderBlock::experts));
  const auto dense_width = config.get_int("base_mlp_dim");
  const auto expert_width = config.get_int("base_moe_mlp_dim");
  const bool dense_is_set =
      config.is_set_by_user("base_mlp_dim") || find_key("base_mlp_dim")->default_value != dense_width;
  // moe_layers lists some layers only: the others have the dense width.
  const bool both_set = config.get_ints("moe_layers").empty() && expert_width > 0 && dense_is_set &&
                        dense_width != expert_width;
  if (experts > 1 && block.one_mlp_width && both_set) {
    fail_usage(
        "[config] base_mlp_dim={} and base_moe_mlp_dim={} differ: decoder_block={} has only experts, set one "
        "or "
        "make them equal",
        dense_width, expert_width, block.name);
  }
  if (config.get_float("routed_bias_update_rate") > 0 && !config.get_bool("routed_bias")) {
    fail_usage("[config] routed_bias_update_rate={} needs routed_bias=true",
               config.get_float("routed_bias_update_rate"));
  }
  if (!config.is_none("moe_dropless_fallback") && !config.get_bool("sparse_matmul") &&
      config.get_float("capacity_factor") > 0) {
    fail_usage(
        "[config] moe_dropless_fallback={}: expected sparse_matmul=true, got the dense path, where "
        "capacity_factor={} drops rows",
        config.get_string("moe_dropless_fallback"), config.get_float("capacity_factor"));
  }
}

void check_groups(const Config& config) {
  const auto groups = config.get_int("n_routing_groups");
  if (groups <= 0) return;
  const auto experts = config.get_int("num_experts");
  const auto kept = config.get_int("topk_routing_group");
  if (experts % groups != 0) {
    fail_usage("[config] num_experts={} must be a multiple of n_routing_groups={}", experts, groups);
  }
  if (kept < 1 || kept > groups) {
    fail_usage("[config] topk_routing_group={}: expected 1 to n_routing_groups={}", kept, groups);
  }
  const auto chosen = config.get_int("num_experts_per_tok");
  if (chosen > kept * (experts / groups)) {
    fail_usage("[config] num_experts_per_tok={} exceeds the {} experts of topk_routing_group={} groups",
               chosen, kept * (experts / groups), kept);
  }
}

void check_layers(const Config& config) {
  const auto dense = config.get_int("first_num_dense_layers");
  const auto layers = config.get_int("base_num_decoder_layers");
  if (dense > layers) {
    fail_usage("[config] first_num_dense_layers={} exceeds base_num_decoder_layers={}", dense, layers);
  }
  if (config.get_float("dropout_rate") > 0 && config.get_bool("enable_dropout")) {
    fail_usage("[config] dropout_rate={} is planned, not built yet: leave it at 0",
               config.get_float("dropout_rate"));
  }
}

// The other choices are the reference's, and mean something only to a cache in few bits.
void check_cache(const Config& config) {
  if (!config.get_bool("quantize_kvcache")) return;
  for (const auto& [key, built] : {std::pair("kv_quant_dtype", "int8"), std::pair("kv_quant_axis", "dkv")}) {
    if (config.get_string(key) == built) continue;
    fail_usage("[config] {}={} with quantize_kvcache=true is planned, not built yet: expected {}", key,
               config.get_string(key).empty() ? "\"\"" : config.get_string(key), built);
  }
}

void check_steps(const Config& config) {
  if (config.get_int("steps") == -1 && config.get_int("learning_rate_schedule_steps") == -1) {
    fail_usage(
        "[config] steps=-1 means learning_rate_schedule_steps, which is -1 too: give one of them a number");
  }
}

// Refuses text-only keys that a user sets for random tokens. A config file may keep them for another run.
void check_data(const Config& config) {
  const std::string& type = config.get_string("dataset_type");
  if (type == "text" || type == "tokenized") {
    if (config.get_int("num_epoch") > 0 && !config.get_strings("data_mixture_weights").empty()) {
      fail_usage(
          "[config] num_epoch={} with data_mixture_weights: the parts of a mixture end at different rows; "
          "leave it at -1 and set steps",
          config.get_int("num_epoch"));
    }
    return;
  }
  if (config.is_set_by_user("data_mixture_weights") && !config.get_strings("data_mixture_weights").empty())
    fail_usage("[config] data_mixture_weights: dataset_type={} has no parts to mix", type);
  if (config.is_set_by_user("data_path") && !config.is_none("data_path")) {
    fail_usage("[config] data_path={} is read with dataset_type=text or tokenized, got dataset_type={}",
               config.get_string("data_path"), config.get_string("dataset_type"));
  }
  if (config.is_set_by_user("eval_interval") && config.get_int("eval_interval") > 0) {
    fail_usage(
        "[config] eval_interval={}: dataset_type={} has no held-out part; use dataset_type=text or "
        "tokenized, or leave it "
        "at -1",
        config.get_int("eval_interval"), config.get_string("dataset_type"));
  }
}

// Refuses what fine-tuning on conversations would pass over.
void check_sft(const Config& config) {
  if (!config.get_bool("use_sft")) {
    if (!config.is_none("eval_data_path"))
      fail_usage(
          "[config] eval_data_path={}: read with use_sft=true alone; eval_fraction holds out a part of texts",
          config.get_string("eval_data_path"));
    return;
  }
  if (config.get_string("dataset_type") != "text")
    fail_usage(
        "[config] use_sft=true reads conversations: expected data_path=FILE with JSON lines and "
        "dataset_type=text, "
        "got dataset_type={}",
        config.get_string("dataset_type"));
  if (!config.get_bool("use_truncation"))
    fail_usage(
        "[config] use_truncation=false with use_sft=true: an answer that goes on in another sequence has no "
        "context there; leave it at true");
  if (config.get_bool("sft_last_answer_only") && !config.get_bool("sft_train_on_completion_only"))
    fail_usage(
        "[config] sft_last_answer_only=true with sft_train_on_completion_only=false: expected one of the "
        "two");
  if (config.is_set_by_user("records_without_text") && config.get_string("records_without_text") == "skip")
    fail_usage(
        "[config] records_without_text=skip with use_sft=true: a line that is no conversation is refused; "
        "leave it out");
  if (!config.is_none("eval_data_path") && config.is_set_by_user("eval_fraction"))
    fail_usage("[config] eval_data_path={} with eval_fraction={}: expected one of the two",
               config.get_string("eval_data_path"), config.get_float("eval_fraction"));
  for (const auto& [key, otherwise] : {std::pair("chat_template", "give a file by chat_template_path"),
                                       std::pair("formatting_func_path", "write messages into the data")}) {
    if (!config.is_none(key))
      fail_usage("[config] {}={} is not read with use_sft=true: {}", key, config.get_string(key), otherwise);
  }
}

// Refuses what training on pairs would pass over.
void check_dpo(const Config& config) {
  if (!config.get_bool("use_dpo")) return;
  const auto refuse = [](const std::string& given, const char* otherwise) {
    fail_usage("[config] {} with use_dpo=true: {}", given, otherwise);
  };
  if (config.get_bool("use_sft")) refuse("use_sft=true", "expected one of the two");
  if (config.get_string("dataset_type") != "text")
    refuse(fmt::format("dataset_type={}", config.get_string("dataset_type")),
           "expected data_path=FILE with JSON lines of prompt, chosen and rejected, and dataset_type=text");
  if (!config.get_bool("use_truncation"))
    refuse("use_truncation=false", "an answer does not go on in another row; leave it at true");
  if (config.get_int("max_segments_per_seq") == 1)
    refuse("max_segments_per_seq=1", "a pair is two documents of a row; expected 2 or more, or -1");
  if (config.get_int("eval_interval") > 0)
    refuse(fmt::format("eval_interval={}", config.get_int("eval_interval")),
           "pairs are not held out so far; leave it at -1");
  if (config.is_set_by_user("records_without_text") && config.get_string("records_without_text") == "skip")
    refuse("records_without_text=skip", "a line that is no pair is refused; leave it out");
  for (const auto& [key, otherwise] : {std::pair("chat_template", "give a file by chat_template_path"),
                                       std::pair("formatting_func_path", "write messages into the data")}) {
    if (!config.is_none(key)) refuse(fmt::format("{}={}", key, config.get_string(key)), otherwise);
  }
}

void check_axes(const Config& config) {
  std::set<std::string> seen;
  for (const std::string& axis : config.mesh_axes()) {
    if (!seen.insert(axis).second) fail_usage("[config] mesh_axes names {} twice", axis);
    check_axis_name(axis);
  }
  if (seen.empty()) fail_usage("[config] mesh_axes is empty: expected the names of the mesh axes");
  for (const auto& rules : {config.axis_rules(), config.axis_rules_for_eval()}) {
    for (const AxisRule& rule : rules) {
      const std::set<std::string> once(rule.axes.begin(), rule.axes.end());
      if (once.size() != rule.axes.size())
        fail_usage("[config] logical_axis_rules: expected each axis once in a rule, got {}: [{}]", rule.name,
                   fmt::join(rule.axes, ", "));
    }
  }
}

}  // namespace

void check_consistency(const Config& config) {
  check_start(config);
  check_heads(config);
  check_experts(config);
  check_groups(config);
  check_layers(config);
  check_cache(config);
  check_steps(config);
  check_data(config);
  check_sft(config);
  check_dpo(config);
  check_axes(config);
}

// Keys about rows that other keys leave nothing to do.
void check_row_keys(const Config& config, std::vector<std::string>& lines) {
  const auto tell = [&](const char* key, const char* why) {
    if (config.is_set_by_user(key)) lines.push_back(fmt::format("{} has no effect with {}", key, why));
  };
  if (config.get_string("dataset_type") == "synthetic") {
    if (!config.get_bool("packing")) tell("packing", "dataset_type=synthetic");
    if (config.get_int("num_epoch") > 0) tell("num_epoch", "dataset_type=synthetic");
  } else if (config.get_bool("packing") && !config.get_bool("use_sft") && !config.get_bool("use_dpo")) {
    tell("use_truncation", "packing=true: a long document goes on in the next sequence");
  } else if (!config.get_bool("packing")) {
    tell("max_segments_per_seq", "packing=false");
  }
  const bool pairs = config.get_bool("use_dpo");
  if (!config.get_bool("use_sft")) {
    for (const char* key : {"sft_train_on_completion_only", "sft_last_answer_only"})
      tell(key, "use_sft=false");
    if (!pairs) tell("sft_trust_messages", "use_sft=false");
  } else if (config.get_int("eval_interval") <= 0) {
    tell("eval_data_path", "eval_interval=-1");
  }
  if (!pairs) {
    for (const char* key :
         {"dpo_algo", "dpo_beta", "dpo_label_smoothing", "orpo_lambda", "max_prompt_length"})
      tell(key, "use_dpo=false");
  } else if (config.get_string("dpo_algo") == "orpo") {
    for (const char* key : {"dpo_beta", "dpo_label_smoothing"}) tell(key, "dpo_algo=orpo");
  } else {
    tell("orpo_lambda", "dpo_algo=dpo");
  }
}

// Keys that are for experts, or for the other of the two ways through them.
void check_expert_keys(const Config& config, std::vector<std::string>& lines) {
  const bool experts = config.get_int("num_experts") > 1, sparse = config.get_bool("sparse_matmul");
  for (const KeyDeclaration& key : all_keys()) {
    const bool of_experts = key.role == KeyRole::strategy || key.path != ExpertPath::both;
    if (!of_experts || key.status != KeyStatus::active || !config.is_set_by_user(key.name) ||
        !config.is_changed(key.name))
      continue;
    if (!experts)
      lines.push_back(fmt::format("{} has no effect: the model has no experts", key.name));
    else if (key.path != ExpertPath::both && sparse != (key.path == ExpertPath::sparse))
      lines.push_back(fmt::format("{} has no effect with sparse_matmul={}", key.name, sparse));
  }
  if (!experts || !sparse) return;
  if (config.is_set_by_user("moe_quantize_combine_bwd_method") && !config.get_bool("use_ring_of_experts"))
    lines.push_back("moe_quantize_combine_bwd_method has no effect with use_ring_of_experts=false");
  if (!config.is_none("moe_dropless_fallback") && config.get_float("ragged_buffer_factor") <= 0 &&
      config.get_float("eval_ragged_buffer_factor") <= 0)
    lines.push_back("moe_dropless_fallback has no effect: ragged_buffer_factor=-1 is no cap");
}

std::vector<std::string> ineffective_keys(const Config& config) {
  std::vector<std::string> lines;
  check_row_keys(config, lines);
  check_expert_keys(config, lines);
  for (const char* key : {"muon_beta", "muon_weight_decay", "muon_consistent_rms", "muon_include_routers"}) {
    if (config.is_set_by_user(key) && config.get_string("opt_type") != "muon")
      lines.push_back(fmt::format("{} has no effect with opt_type={}", key, config.get_string("opt_type")));
  }
  for (const char* key : {"kv_quant_dtype", "kv_quant_axis"}) {
    if (config.is_set_by_user(key) && !config.get_bool("quantize_kvcache"))
      lines.push_back(fmt::format("{} has no effect with quantize_kvcache=false", key));
  }
  for (const char* key : {"temperature_tuning_scale", "temperature_tuning_floor_scale"}) {
    if (config.is_set_by_user(key) && !config.get_bool("temperature_tuning"))
      lines.push_back(fmt::format("{} has no effect with temperature_tuning=false", key));
  }
  if (config.get_bool("moe_use_megatron_seq_aux_loss") && config.get_string("routed_score_func") != "sigmoid")
    lines.push_back("moe_use_megatron_seq_aux_loss has no effect: it is for routed_score_func=sigmoid");
  if (config.get_int("ici_pipeline_parallelism") == 1 && config.get_int("dcn_pipeline_parallelism") == 1) {
    for (const char* key : {"num_pipeline_microbatches", "pipeline_schedule", "num_pipeline_repeats",
                            "num_layers_per_pipeline_stage", "pipeline_parallel_layers"}) {
      if (config.is_set_by_user(key))
        lines.push_back(fmt::format("{} has no effect: ici_pipeline_parallelism=1 is no pipeline", key));
    }
  }
  return lines;
}

}  // namespace switchyard

#include <cmath>
#include <limits>
#include <string_view>

#include "checkpoint/block_scaled.h"
#include "checkpoint/hub.h"
#include "checkpoint/json_file.h"
#include "core/error.h"

namespace switchyard {
namespace {

using nlohmann::json;
using OurConfig = std::map<std::string, json>;

// A value as it may stand in a message: JSON, so without control characters, and not too long.
std::string shown(const json& value) {
  const std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  return text.size() <= 100 ? text : text.substr(0, 100) + "...";
}

// Typed access to a config.json. An absent key and a null are the same thing there.
class HubConfig {
 public:
  explicit HubConfig(const json& values, std::string part = {}) : values_(values), part_(std::move(part)) {
    if (!values.is_object()) fail_usage("[hub config] {}expected an object, got {}", part_, shown(values));
  }

  bool has(const char* key) const { return values_.contains(key) && !values_[key].is_null(); }
  const json& at(const char* key) const { return values_[key]; }

  std::int64_t integer(const char* key) const {
    require(key);
    const json& value = values_[key];
    constexpr std::int64_t kMost = std::int64_t{1} << 40;
    if (!value.is_number_integer() || (value.is_number_unsigned() && value.get<std::uint64_t>() > kMost) ||
        value.get<std::int64_t>() < 0) {
      wrong(key, "a whole number from 0 to 2^40");
    }
    return value.get<std::int64_t>();
  }
  std::int64_t positive(const char* key) const {
    const std::int64_t value = integer(key);
    if (value == 0) wrong(key, "a positive whole number");
    return value;
  }
  std::int64_t integer(const char* key, std::int64_t absent) const {
    return has(key) ? integer(key) : absent;
  }

  double number(const char* key) const {
    require(key);
    if (!values_[key].is_number()) wrong(key, "a number");
    return values_[key].get<double>();
  }
  double number(const char* key, double absent) const { return has(key) ? number(key) : absent; }

  bool flag(const char* key, bool absent) const {
    if (!has(key)) return absent;
    if (!values_[key].is_boolean()) wrong(key, "true or false");
    return values_[key].get<bool>();
  }
  std::string text(const char* key, const char* absent) const {
    if (!has(key)) return absent;
    if (!values_[key].is_string()) wrong(key, "a string");
    return values_[key].get<std::string>();
  }

  [[noreturn]] void wrong(const char* key, std::string_view expected) const {
    fail_usage("[hub config] {}{}={}: expected {}", part_, key, shown(values_[key]), expected);
  }

 private:
  void require(const char* key) const {
    if (!has(key)) fail_usage("[hub config] {}{} is missing", part_, key);
  }
  const json& values_;
  std::string part_;
};

// A whole number as one: our keys for scales and factors are integers.
json shortest(double value) {
  if (std::floor(value) == value && std::abs(value) < 1e15) return static_cast<std::int64_t>(value);
  return value;
}

bool is_mla(const std::string& type) {
  return type == "deepseek_v2" || type == "deepseek_v3" || type == "kimi_k2";
}

// Weights as checkpoint/block_scaled.h reads them. How activations were to be rounded is left aside: here
// they are not.
bool is_block_scaled(const json& quantization) {
  return quantization.is_object() && quantization.value("quant_method", json()) == "fp8" &&
         quantization.value("fmt", json("e4m3")) == "e4m3" &&
         quantization.value("weight_block_size", json()) == json{kScaleBlock, kScaleBlock};
}

// As checkpoint/gptq.h reads them; whether zeros and inputs are as wanted is seen in the tensors.
bool is_four_bit_gptq(const json& quantization) {
  return quantization.is_object() && quantization.value("quant_method", json()) == "gptq" &&
         quantization.value("bits", json()) == 4;
}

// Features that change the result and that we do not compute.
void refuse_unsupported(const HubConfig& hub) {
  if (hub.text("hidden_act", "silu") != "silu") hub.wrong("hidden_act", "silu");
  for (const char* key : {"attention_bias", "mlp_bias", "use_sliding_window"}) {
    if (hub.flag(key, false)) hub.wrong(key, "false; true is not supported");
  }
  for (const char* key : {"attention_dropout", "router_jitter_noise"}) {
    if (hub.number(key, 0) != 0) hub.wrong(key, "0; other values are not supported");
  }
  if (hub.has("quantization_config") && !is_block_scaled(hub.at("quantization_config")) &&
      !is_four_bit_gptq(hub.at("quantization_config")))
    hub.wrong("quantization_config",
              "none, quant_method=fp8 with weight_block_size=[128,128], or quant_method=gptq with bits=4");
  if (hub.has("layer_types")) {
    for (const json& kind : hub.at("layer_types")) {
      if (kind != "full_attention") hub.wrong("layer_types", "full_attention in every layer");
    }
  }
  if (hub.number("partial_rotary_factor", 1) != 1) hub.wrong("partial_rotary_factor", "1");
  const std::string type = hub.text("model_type", "");
  const bool windowed = type == "mistral" || type == "mixtral";
  if (windowed && hub.has("sliding_window") &&
      hub.integer("sliding_window") < hub.positive("max_position_embeddings")) {
    hub.wrong("sliding_window",
              "null or at least max_position_embeddings; windowed attention is not supported");
  }
}

// The rotary settings in one object, whichever style the file has: transformers 5 has `rope_parameters`,
// published files `rope_theta` and `rope_scaling`, the latter with the key `type` before `rope_type` was
// agreed.
json rope_of(const HubConfig& hub, const std::string& type) {
  json rope = json::object();
  const char* source = hub.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  if (hub.has(source)) {
    if (!hub.at(source).is_object()) hub.wrong(source, "an object");
    rope = hub.at(source);
  }
  if (hub.has("rope_theta") && !rope.contains("rope_theta")) rope["rope_theta"] = hub.at("rope_theta");
  // Absent from the first published Llama files; the other types have always stated it.
  if (!rope.contains("rope_theta") && (type == "llama" || is_mla(type))) rope["rope_theta"] = 10000;
  if (!rope.contains("rope_type")) rope["rope_type"] = rope.contains("type") ? rope["type"] : json("default");
  return rope;
}

void map_yarn(const HubConfig& rope, bool mla, std::int64_t max_position, OurConfig& ours) {
  ours["rope_type"] = "yarn";
  ours["rope_factor"] = shortest(rope.number("factor"));
  ours["beta_fast"] = shortest(rope.number("beta_fast", 32));
  ours["beta_slow"] = shortest(rope.number("beta_slow", 1));
  ours["original_max_position_embeddings"] = rope.integer("original_max_position_embeddings", max_position);
  ours["rope_truncate"] = rope.flag("truncate", true);
  if (rope.has("attention_factor")) rope.wrong("attention_factor", "none; it is derived from factor");
  const double mscale = rope.number("mscale", 0), all = rope.number("mscale_all_dim", 0);
  if (!mla) {
    // Here the attention temperature 0.1 ln(factor) + 1 multiplies the rotated vectors.
    if (mscale != all)
      rope.wrong(rope.has("mscale") ? "mscale" : "mscale_all_dim", "the same value for both mscales");
    ours["rope_attention_scaling"] = all == 0;
    return;
  }
  // MLA puts it into the softmax scale; different values would leave a factor on the rotated part.
  if (mscale != all || all == 0) {
    fail_usage("[hub config] rope mscale={}, mscale_all_dim={}: expected both present and equal", mscale,
               all);
  }
  // transformers scales the scores at any length, we and the published code beyond the original only.
  const std::int64_t original = ours["original_max_position_embeddings"].get<std::int64_t>();
  if (max_position <= original && rope.number("factor") > 1) {
    fail_usage(
        "[hub config] max_position_embeddings={}: expected more than original_max_position_embeddings={}",
        max_position, original);
  }
  ours["mscale"] = mscale;
  ours["rope_attention_scaling"] = false;
}

void map_rope(const HubConfig& hub, const std::string& type, OurConfig& ours) {
  const json values = rope_of(hub, type);
  const HubConfig rope(values, "rope ");
  const std::int64_t max_position = hub.positive("max_position_embeddings");
  const double theta = rope.number("rope_theta");
  if (!(theta >= 1) || theta > 1e12) rope.wrong("rope_theta", "1 to 1e12");
  ours["rope_max_timescale"] = shortest(theta);
  ours["max_position_embeddings"] = max_position;
  ours["rope_interleave"] = is_mla(type) && hub.flag("rope_interleave", true);
  if (rope.number("partial_rotary_factor", 1) != 1) rope.wrong("partial_rotary_factor", "1");
  if (rope.has("factor") && !(rope.number("factor") >= 1)) rope.wrong("factor", "at least 1");
  const std::string kind = rope.text("rope_type", "default");
  if (kind == "default") {
    ours["rope_type"] = "default";
    ours["rope_attention_scaling"] = false;
    ours["original_max_position_embeddings"] = max_position;  // nothing is stretched
  } else if (kind == "llama3") {
    ours["rope_type"] = "llama3.1";
    ours["rope_factor"] = shortest(rope.number("factor"));
    ours["rope_low_freq_factor"] = rope.number("low_freq_factor");
    ours["rope_high_freq_factor"] = rope.number("high_freq_factor");
    ours["original_max_position_embeddings"] = rope.positive("original_max_position_embeddings");
    ours["rope_attention_scaling"] = false;
  } else if (kind == "yarn") {
    map_yarn(rope, is_mla(type), max_position, ours);
  } else {
    rope.wrong("rope_type", "default, llama3 or yarn");
  }
}

void map_grouped_attention(const HubConfig& hub, const std::string& type, OurConfig& ours) {
  const std::int64_t heads = hub.positive("num_attention_heads"), width = hub.positive("hidden_size");
  ours["attention_type"] = "global";
  const bool qwen = type == "qwen3" || type == "qwen3_moe";
  ours["use_qk_norm"] = qwen;
  if (hub.has("head_dim")) {
    ours["head_dim"] = hub.positive("head_dim");
  } else if (qwen) {
    ours["head_dim"] = 128;  // the default of these types, whatever the width
  } else if (width % heads != 0) {
    fail_usage("[hub config] hidden_size={} is not a multiple of num_attention_heads={}", width, heads);
  } else {
    ours["head_dim"] = width / heads;
  }
  const std::int64_t kv_heads = ours["base_num_kv_heads"].get<std::int64_t>();
  if (heads % kv_heads != 0) {
    fail_usage("[hub config] num_attention_heads={} is not a multiple of num_key_value_heads={}", heads,
               kv_heads);
  }
}

void map_latent_attention(const HubConfig& hub, OurConfig& ours) {
  ours["attention_type"] = "mla";
  ours["use_qk_norm"] = false;
  ours["base_num_kv_heads"] = hub.positive("num_attention_heads");  // every head has its own key and value
  ours["q_lora_rank"] = hub.integer("q_lora_rank", 0);
  for (const char* key : {"kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"}) {
    ours[key] = hub.positive(key);
  }
}

void map_deepseek_router(const HubConfig& hub, bool second, OurConfig& ours) {
  const char* usual = second ? "softmax" : "sigmoid";
  if (hub.text("scoring_func", usual) != usual) hub.wrong("scoring_func", usual);
  const std::string method = hub.text("topk_method", second ? "greedy" : "noaux_tc");
  const bool limited = method == "group_limited_greedy";
  if (second ? method != "greedy" && !limited : method != "noaux_tc") {
    hub.wrong("topk_method", second ? "greedy or group_limited_greedy" : "noaux_tc");
  }
  ours["routed_score_func"] = usual;
  ours["routed_bias"] = !second;
  ours["norm_topk_prob"] = hub.flag("norm_topk_prob", !second);
  if (second && hub.flag("norm_topk_prob", false)) hub.wrong("norm_topk_prob", "false for deepseek_v2");
  ours["routed_scaling_factor"] = hub.number("routed_scaling_factor", second ? 1.0 : 2.5);
  // The third generation has groups unless it says that it has none.
  const std::int64_t groups = second ? hub.integer("n_group", 1) : hub.integer("n_group"),
                     best = second ? hub.integer("topk_group", 1) : hub.integer("topk_group");
  const bool grouped = groups > 1 && (limited || !second);
  ours["n_routing_groups"] = grouped ? groups : -1;
  ours["topk_routing_group"] = grouped ? best : -1;
  const std::int64_t experts = hub.positive("n_routed_experts");
  if (grouped && (experts % groups != 0 || best < 1 || best > groups)) {
    fail_usage(
        "[hub config] n_group={}, topk_group={}: expected n_group to divide n_routed_experts={} and "
        "topk_group "
        "in 1..n_group",
        groups, best, experts);
  }
}

void map_deepseek(const HubConfig& hub, const std::string& type, OurConfig& ours) {
  ours["decoder_block"] = "deepseek";
  map_latent_attention(hub, ours);
  if (hub.integer("moe_layer_freq", 1) != 1) hub.wrong("moe_layer_freq", "1");
  ours["first_num_dense_layers"] = hub.integer("first_k_dense_replace");
  ours["num_experts"] = hub.positive("n_routed_experts");
  ours["num_experts_per_tok"] = hub.positive("num_experts_per_tok");
  ours["shared_experts"] = hub.integer("n_shared_experts", 0);
  ours["base_moe_mlp_dim"] = hub.positive("moe_intermediate_size");
  map_deepseek_router(hub, type == "deepseek_v2", ours);
}

void map_qwen_moe(const HubConfig& hub, OurConfig& ours) {
  ours["decoder_block"] = "qwen3_moe";
  if (hub.integer("decoder_sparse_step", 1) != 1) hub.wrong("decoder_sparse_step", "1");
  if (hub.has("mlp_only_layers") && hub.at("mlp_only_layers") != json::array()) {
    hub.wrong("mlp_only_layers", "[]; dense layers between MoE layers are not supported");
  }
  ours["num_experts"] = hub.positive(hub.has("num_experts") ? "num_experts" : "num_local_experts");
  ours["num_experts_per_tok"] = hub.positive("num_experts_per_tok");
  ours["base_moe_mlp_dim"] = hub.positive("moe_intermediate_size");
  ours["base_mlp_dim"] =
      ours["base_moe_mlp_dim"];  // no layer has the dense width; the reference states it like this
  ours["norm_topk_prob"] = hub.flag("norm_topk_prob", false);
}

void map_common(const HubConfig& hub, OurConfig& ours) {
  ours["vocab_size"] = hub.positive("vocab_size");
  ours["base_emb_dim"] = hub.positive("hidden_size");
  ours["base_num_query_heads"] = hub.positive("num_attention_heads");
  ours["base_num_kv_heads"] = hub.has("num_key_value_heads") ? hub.positive("num_key_value_heads")
                                                             : hub.positive("num_attention_heads");
  ours["base_mlp_dim"] = hub.positive("intermediate_size");
  ours["base_num_decoder_layers"] = hub.positive("num_hidden_layers");
  ours["normalization_layer_epsilon"] = hub.number("rms_norm_eps");
  ours["mlp_activations"] = {"silu", "linear"};
  ours["logits_via_embedding"] = hub.flag("tie_word_embeddings", false);
  ours["normalize_embedding_logits"] = false;
  ours["num_experts"] = 1;
}

}  // namespace

HubFamily hub_family(const json& hub_config) {
  const std::string type = HubConfig(hub_config).text("model_type", "");
  if (type == "llama" || type == "mistral" || type == "qwen3") return HubFamily::llama;
  if (type == "mixtral") return HubFamily::mixtral;
  if (is_mla(type)) return HubFamily::deepseek;
  if (type == "qwen3_moe") return HubFamily::qwen_moe;
  fail_usage(
      "[hub config] model_type={}: expected llama, mistral, mixtral, deepseek_v2, deepseek_v3, kimi_k2, "
      "qwen3 "
      "or qwen3_moe",
      in_quotes(type));
}

std::map<std::string, json> config_from_hub(const json& hub_config) {
  const HubFamily family = hub_family(hub_config);
  const HubConfig hub(hub_config);
  const std::string type = hub.text("model_type", "");
  refuse_unsupported(hub);
  OurConfig ours;
  map_common(hub, ours);
  map_rope(hub, type, ours);
  if (family == HubFamily::deepseek) {
    map_deepseek(hub, type, ours);
  } else {
    map_grouped_attention(hub, type, ours);
  }
  if (family == HubFamily::llama) ours["decoder_block"] = type == "llama" ? "llama2" : type;
  if (family == HubFamily::qwen_moe) map_qwen_moe(hub, ours);
  if (family == HubFamily::mixtral) {
    ours["decoder_block"] = "mixtral";
    ours["base_moe_mlp_dim"] = ours["base_mlp_dim"];
    ours["num_experts"] = hub.positive("num_local_experts");
    ours["num_experts_per_tok"] = hub.positive("num_experts_per_tok");
  }
  if (ours.contains("num_experts_per_tok") && ours["num_experts_per_tok"] > ours["num_experts"]) {
    hub.wrong("num_experts_per_tok", "at most the number of experts");
  }
  return ours;
}

}  // namespace switchyard

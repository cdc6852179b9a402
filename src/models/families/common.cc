#include "models/families/common.h"

#include <fmt/format.h>

#include <cmath>

#include "checkpoint/block_scaled.h"
#include "core/error.h"

namespace switchyard {
namespace {

using nlohmann::json;

// Weights as checkpoint/block_scaled.h reads them. How activations were to be rounded is left aside: here
// they are not.
bool is_block_scaled(const json& quantization) {
  if (!quantization.is_object() || quantization.value("quant_method", json()) != "fp8") return false;
  const json format = quantization.value("fmt", json("e4m3"));
  return (format == "e4m3" || format == "float8_e4m3fn") &&
         quantization.value("weight_block_size", json()) == json{kScaleBlock, kScaleBlock};
}

// As checkpoint/gptq.h reads them; whether zeros and inputs are as wanted is seen in the tensors.
bool is_four_bit_gptq(const json& quantization) {
  return quantization.is_object() && quantization.value("quant_method", json()) == "gptq" &&
         quantization.value("bits", json()) == 4;
}

// As checkpoint/mxfp4.h reads them.
bool is_mxfp4(const json& quantization) {
  return quantization.is_object() && quantization.value("quant_method", json()) == "mxfp4";
}

// Features that change the result and that we do not compute.
void refuse_unsupported(const HubConfig& hub) {
  if (hub.text("hidden_act", "silu") != "silu") hub.wrong("hidden_act", "silu");
  if (hub.flag("mlp_bias", false)) hub.wrong("mlp_bias", "false; true is not supported");
  for (const char* key : {"attention_dropout", "router_jitter_noise"}) {
    if (hub.number(key, 0) != 0) hub.wrong(key, "0; other values are not supported");
  }
  if (hub.has("quantization_config") && !is_block_scaled(hub.at("quantization_config")) &&
      !is_four_bit_gptq(hub.at("quantization_config")) && !is_mxfp4(hub.at("quantization_config")))
    hub.wrong("quantization_config",
              "none, quant_method=fp8 with weight_block_size=[128,128], gptq with bits=4, or mxfp4");
}

// The rotary settings in one object, whichever style the file has: transformers 5 has `rope_parameters`,
// published files `rope_theta` and `rope_scaling`, the latter with the key `type` before `rope_type` was
// agreed.
json rope_of(const HubConfig& hub, double usual_theta) {
  json rope = json::object();
  const char* source = hub.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  if (hub.has(source)) {
    if (!hub.at(source).is_object()) hub.wrong(source, "an object");
    rope = hub.at(source);
  }
  if (hub.has("rope_theta") && !rope.contains("rope_theta")) rope["rope_theta"] = hub.at("rope_theta");
  if (!rope.contains("rope_theta") && usual_theta > 0) rope["rope_theta"] = usual_theta;
  if (!rope.contains("rope_type")) rope["rope_type"] = rope.contains("type") ? rope["type"] : json("default");
  return rope;
}

void read_yarn(const HubConfig& rope, bool mla, std::int64_t max_position, ConfigKeys& ours) {
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

}  // namespace

nlohmann::json shortest(double value) {
  if (std::floor(value) == value && std::abs(value) < 1e15) return static_cast<std::int64_t>(value);
  return value;
}

void read_common(const HubConfig& hub, ConfigKeys& ours) {
  refuse_unsupported(hub);
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

void read_rope(const HubConfig& hub, const RopeDefaults& defaults, ConfigKeys& ours) {
  const json values = rope_of(hub, defaults.usual_theta);
  const HubConfig rope(values, "rope ");
  const std::int64_t max_position = hub.positive("max_position_embeddings");
  const double theta = rope.number("rope_theta");
  if (!(theta >= 1) || theta > 1e12) rope.wrong("rope_theta", "1 to 1e12");
  ours["rope_max_timescale"] = shortest(theta);
  ours["max_position_embeddings"] = max_position;
  ours["rope_interleave"] = defaults.latent && hub.flag("rope_interleave", true);
  // transformers 5 has it among these settings, published files beside them.
  const HubConfig& states_share = rope.has("partial_rotary_factor") ? rope : hub;
  const bool whole = defaults.usual_share == 0;
  const double share = states_share.number("partial_rotary_factor", whole ? 1 : defaults.usual_share);
  if (whole ? share != 1 : !(share > 0 && share <= 1))
    states_share.wrong("partial_rotary_factor", whole ? "1" : "more than 0, at most 1");
  ours["partial_rotary_factor"] = share;
  if (rope.has("factor") && !(rope.number("factor") >= 1)) rope.wrong("factor", "at least 1");
  const std::string kind = rope.text("rope_type", "default");
  // Of GGUF files, which may state a divisor for each frequency; transformers has no key for them.
  if (rope.has("frequency_divisors")) ours["rope_frequency_divisors"] = rope.at("frequency_divisors");
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
    read_yarn(rope, defaults.latent, max_position, ours);
  } else {
    rope.wrong("rope_type", "default, llama3 or yarn");
  }
}

void read_grouped_attention(const HubConfig& hub, const GroupedAttention& family, ConfigKeys& ours) {
  const std::int64_t heads = hub.positive("num_attention_heads"), width = hub.positive("hidden_size");
  ours["attention_type"] = "global";
  ours["use_qk_norm"] = family.qk_norm;
  ours["attention_bias"] = hub.flag("attention_bias", false);
  if (!family.biases && hub.flag("attention_bias", false))
    hub.wrong("attention_bias", "false; this family has no biases");
  if (hub.has("head_dim")) {
    ours["head_dim"] = hub.positive("head_dim");
  } else if (family.head_dim > 0) {
    ours["head_dim"] = family.head_dim;
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

nlohmann::json layers_that_are(const HubConfig& hub, const char* key, const char* yes, const char* no) {
  const json& words = hub.at(key);
  const std::string expected =
      fmt::format("{} or {} for each of {} layers", yes, no, hub.positive("num_hidden_layers"));
  if (!words.is_array() || std::ssize(words) != hub.positive("num_hidden_layers")) hub.wrong(key, expected);
  json numbers = json::array();
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] != yes && words[i] != no) hub.wrong(key, expected);
    if (words[i] == yes) numbers.push_back(i);
  }
  return numbers;
}

void read_windowed_layers(const HubConfig& hub, ConfigKeys& ours) {
  if (!hub.has("layer_types")) return;
  const json layers = layers_that_are(hub, "layer_types", "sliding_attention", "full_attention");
  if (layers.empty())
    ours["sliding_window_size"] = 0;
  else
    ours["windowed_layers"] = layers;
}

void read_window_of_all(const HubConfig& hub, ConfigKeys& ours) {
  if (!hub.has("sliding_window")) return;
  const std::int64_t window = hub.positive("sliding_window");
  if (window < hub.positive("max_position_embeddings")) ours["sliding_window_size"] = window;
}

void refuse_windows(const HubConfig& hub, const char* kind_of_layers) {
  if (hub.flag("use_sliding_window", false))
    hub.wrong("use_sliding_window", "false; this family has no windows");
  if (!hub.has("layer_types")) return;
  for (const json& kind : hub.at("layer_types")) {
    if (kind != kind_of_layers) hub.wrong("layer_types", fmt::format("{} in every layer", kind_of_layers));
  }
}

namespace {

HubJson rope_scaling(const Config& config, const ModelConfig& model) {
  const RopeConfig& rope = model.rope;
  if (rope.type == "llama3.1") {
    return {{"rope_type", "llama3"},
            {"factor", rope.factor},
            {"low_freq_factor", rope.low_frequency_factor},
            {"high_freq_factor", rope.high_frequency_factor},
            {"original_max_position_embeddings", rope.original_positions}};
  }
  if (rope.type != "yarn") return nullptr;
  HubJson yarn = {{"rope_type", "yarn"},
                  {"factor", rope.factor},
                  {"beta_fast", shortest(rope.beta_fast)},
                  {"beta_slow", shortest(rope.beta_slow)},
                  {"original_max_position_embeddings", rope.original_positions}};
  if (!rope.truncate) yarn["truncate"] = false;
  // Both present and equal leave the rotated vectors alone; of MLA they also scale the scores.
  const double mscale = model.mla ? config.get_float("mscale") : 1.0;
  if (mscale == 0) fail_usage("[convert] mscale=0: no Hugging Face form; its files state one above 0");
  if (!rope.attention_scaling) yarn["mscale"] = yarn["mscale_all_dim"] = mscale;
  return yarn;
}

}  // namespace

HubJson write_common(const Config& config, const ModelConfig& model) {
  return {{"hidden_act", "silu"},
          {"hidden_size", model.emb},
          {"intermediate_size", model.mlp},
          {"num_hidden_layers", model.layers},
          {"num_attention_heads", model.heads},
          {"vocab_size", model.vocab},
          {"max_position_embeddings", config.get_int("max_position_embeddings")},
          {"rms_norm_eps", config.get_float("normalization_layer_epsilon")},
          {"rope_theta", shortest(model.rope.theta)},
          {"rope_scaling", rope_scaling(config, model)},
          {"tie_word_embeddings", model.tied},
          {"attention_bias", model.attention_bias},
          {"attention_dropout", 0.0},
          {"initializer_range", 0.02},
          {"use_cache", true}};
}

HubJson layer_types(const ModelConfig& model) {
  HubJson kinds = HubJson::array();
  for (const LayerSpec& layer :
       std::span<const LayerSpec>(model.layer_specs).first(static_cast<std::size_t>(model.layers)))
    kinds.push_back(layer.windowed ? "sliding_attention" : "full_attention");
  return kinds;
}

void write_grouped_attention(const ModelConfig& model, HubJson& hub) {
  hub["num_key_value_heads"] = model.kv_heads;
  hub["head_dim"] = model.head_dim;
}

}  // namespace switchyard

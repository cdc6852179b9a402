#include "models/families/common.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <utility>

#include "core/error.h"
#include "core/json_file.h"
#include "models/families/quantization.h"

namespace switchyard {
namespace {

using nlohmann::json;

// The rotary settings in one object, wherever the file has them, as transformers 5 looks for them: in
// `rope_scaling` where it is not empty, else in `rope_parameters`; theta and share beside it too. `rope_type`
// was called `type` at first.
json rope_of(const HubConfig& hub, const RopeDefaults& defaults) {
  json rope = hub.has("rope_parameters") ? json::object() : defaults.usual;
  for (const char* source : {"rope_parameters", "rope_scaling"}) {
    if (!hub.has(source)) continue;
    if (!hub.at(source).is_object()) hub.wrong(source, "an object");
    if (hub.at(source).empty()) continue;
    const json before = std::exchange(rope, hub.at(source));
    const HubConfig now(rope);
    for (const char* key : {"rope_theta", "partial_rotary_factor"}) {
      if (!now.has(key) && !hub.has(key) && before.contains(key)) rope[key] = before[key];
    }
  }
  const HubConfig stated(rope);
  for (const char* key : {"rope_theta", "partial_rotary_factor"}) {
    if (!stated.has(key) && hub.has(key)) rope[key] = hub.at(key);
  }
  if (!stated.has("rope_theta") && defaults.usual_theta > 0) rope["rope_theta"] = defaults.usual_theta;
  if (!stated.has("rope_type")) rope["rope_type"] = stated.has("type") ? rope["type"] : json("default");
  if (hub.has("original_max_position_embeddings"))
    rope["original_max_position_embeddings"] = hub.at("original_max_position_embeddings");
  return rope;
}

// YaRN's temperature.
double temperature(double factor, double mscale) {
  return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1;
}

// YaRN multiplies cos and sin by a factor: here 1, or the temperature.
bool reads_temperature(const HubConfig& rope, double factor, double mscale, double all) {
  const double usual = temperature(factor, 1);
  const bool stated = rope.has("attention_factor");
  const double value = stated                    ? rope.number("attention_factor")
                       : mscale != 0 && all != 0 ? temperature(factor, mscale) / temperature(factor, all)
                                                 : usual;
  constexpr double kRounding = 1e-7;  // of a number as text
  if (std::abs(value - 1) <= kRounding) return false;
  if (std::abs(value - usual) <= kRounding) return true;
  rope.wrong(stated ? "attention_factor" : "mscale",
             fmt::format("{} of 1 or {}, which factor={} gives; got {}",
                         stated ? "one" : "an attention_factor", usual, factor, value));
}

void read_yarn(const HubConfig& rope, bool mla, std::int64_t max_position, ConfigKeys& ours) {
  const std::int64_t original = rope.has("original_max_position_embeddings")
                                    ? rope.positive("original_max_position_embeddings")
                                    : max_position;
  const double factor =
      rope.number("factor", static_cast<double>(max_position) / static_cast<double>(original));
  if (factor < 1)
    fail_usage(
        "[hub config] max_position_embeddings={}: expected at least original_max_position_embeddings={}, as "
        "factor is null",
        max_position, original);
  // There 0 is as good as none.
  const auto beta = [&](const char* key, double usual) {
    const double value = rope.number(key, usual);
    return shortest(value == 0 ? usual : value);
  };
  ours["rope_type"] = "yarn";
  ours["rope_factor"] = shortest(factor);
  ours["beta_fast"] = beta("beta_fast", 32);
  ours["beta_slow"] = beta("beta_slow", 1);
  ours["original_max_position_embeddings"] = original;
  ours["rope_truncate"] = rope.flag("truncate", true);
  const double mscale = rope.number("mscale", 0), all = rope.number("mscale_all_dim", 0);
  ours["rope_attention_scaling"] = reads_temperature(rope, factor, mscale, all);
  if (!mla) return;
  // MLA's scores are scaled too, by mscale_all_dim alone: none without it.
  ours["mscale"] = all;
  // transformers scales them at any length, we and the published code beyond the original only.
  if (max_position <= original && factor > 1 && all != 0) {
    fail_usage(
        "[hub config] max_position_embeddings={}: expected more than original_max_position_embeddings={}",
        max_position, original);
  }
}

// MLA's scores are scaled by it with any rotation but the default; here with YaRN only.
void refuse_latent_scale(const HubConfig& rope, bool latent, const char* type) {
  if (latent && rope.number("mscale_all_dim", 0) != 0)
    rope.wrong("mscale_all_dim", fmt::format("none with rope_type={}", type));
}

// Words of one rotation for each kind of layer would be passed over.
void check_one_rotation(const HubConfig& rope, const json& values) {
  for (const auto& [key, value] : values.items()) {
    if (value.is_object()) rope.wrong(key.c_str(), "one rotation for all layers");
  }
}

constexpr std::string_view kRopeFields[] = {"rope_type",       "type",
                                            "rope_theta",      "partial_rotary_factor",
                                            "factor",          "original_max_position_embeddings",
                                            "low_freq_factor", "high_freq_factor",
                                            "beta_fast",       "beta_slow",
                                            "mscale",          "mscale_all_dim",
                                            "truncate",        "attention_factor",
                                            "mrope_section",   "mrope_interleaved",
                                            "finetuned"};

constexpr std::string_view kCommonRead[] = {"model_type",
                                            "vocab_size",
                                            "hidden_size",
                                            "intermediate_size",
                                            "num_hidden_layers",
                                            "num_attention_heads",
                                            "num_key_value_heads",
                                            "rms_norm_eps",
                                            "max_position_embeddings",
                                            "original_max_position_embeddings",
                                            "rope_theta",
                                            "rope_scaling",
                                            "rope_parameters",
                                            "partial_rotary_factor",
                                            "layer_types",
                                            "tie_word_embeddings",
                                            "quantization_config"};
// transformers 5 lets tokens see later ones, in every class, where is_causal is false.
constexpr FixedField kCommonRefused[] = {{"hidden_act", R"("silu")"},
                                         {"is_causal", "true"},
                                         {"mlp_bias", "false"},
                                         {"attention_dropout", "0"},
                                         {"router_jitter_noise", "0"}};
// These fields say how text is made, how a class works, or how a model was trained.
constexpr std::string_view kCommonUnused[] = {"architectures",
                                              "torch_dtype",
                                              "dtype",
                                              "transformers_version",
                                              "auto_map",
                                              "_name_or_path",
                                              "name_or_path",
                                              "_commit_hash",
                                              "_attn_implementation",
                                              "_attn_implementation_autoset",
                                              "_experts_implementation",
                                              "attn_implementation",
                                              "experts_implementation",
                                              "unsloth_fixed",
                                              "unsloth_version",
                                              "initializer_range",
                                              "use_cache",
                                              "cache_implementation",
                                              "gradient_checkpointing",
                                              "pretraining_tp",
                                              "output_router_logits",
                                              "router_aux_loss_coef",
                                              "bos_token_id",
                                              "eos_token_id",
                                              "pad_token_id",
                                              "sep_token_id",
                                              "decoder_start_token_id",
                                              "tokenizer_class",
                                              "prefix",
                                              "problem_type",
                                              "id2label",
                                              "label2id",
                                              "num_labels",
                                              "finetuning_task",
                                              "task_specific_params",
                                              "return_dict",
                                              "output_attentions",
                                              "output_hidden_states",
                                              "output_scores",
                                              "return_dict_in_generate",
                                              "torchscript",
                                              "use_bfloat16",
                                              "tf_legacy_loss",
                                              "tie_encoder_decoder",
                                              "is_encoder_decoder",
                                              "is_decoder",
                                              "add_cross_attention",
                                              "cross_attention_hidden_size",
                                              "chunk_size_feed_forward",
                                              "pruned_heads",
                                              "max_length",
                                              "min_length",
                                              "do_sample",
                                              "early_stopping",
                                              "num_beams",
                                              "num_beam_groups",
                                              "num_return_sequences",
                                              "diversity_penalty",
                                              "temperature",
                                              "top_k",
                                              "top_p",
                                              "typical_p",
                                              "repetition_penalty",
                                              "length_penalty",
                                              "no_repeat_ngram_size",
                                              "encoder_no_repeat_ngram_size",
                                              "bad_words_ids",
                                              "forced_bos_token_id",
                                              "forced_eos_token_id",
                                              "remove_invalid_values",
                                              "exponential_decay_length_penalty",
                                              "suppress_tokens",
                                              "begin_suppress_tokens"};

// Calls each(fields) for those of the family, and of all that it has in common with others.
void for_fields(const HubFields& fields, const std::function<void(const HubFields&)>& each) {
  each(fields);
  for (const HubFields* const more : fields.more) {
    if (more != nullptr) for_fields(*more, each);
  }
}

constexpr std::string_view kGroupedRead[] = {"head_dim", "attention_bias"};
constexpr std::string_view kExpertNames[] = {"num_experts", "num_local_experts", "n_routed_experts"};

void check_names_of_experts(const HubConfig& hub) {
  const char* first = nullptr;
  for (const std::string_view name : kExpertNames) {
    const char* const key = name.data();
    if (!hub.has(key)) continue;
    if (first != nullptr && hub.at(key) != hub.at(first))
      hub.wrong(key, fmt::format("none, or {}={}", first, hub.at(first).dump()));
    if (first == nullptr) first = key;
  }
}

}  // namespace

const HubFields kGroupedFields{.read = kGroupedRead};
const HubFields kNamesOfExperts{.unused = kExpertNames};

const HubFields& common_fields() {
  static constexpr HubFields kFields{.read = kCommonRead, .refused = kCommonRefused, .unused = kCommonUnused};
  return kFields;
}

void check_fields(const HubConfig& hub, const ModelFamily& family) {
  const auto check = [&](const HubFields& fields) {
    for (const FixedField& field : fields.refused) {
      const std::string key(field.key);
      const json expected = json::parse(field.value);
      if (!hub.has(key.c_str()) || hub.at(key.c_str()) == expected) continue;
      hub.wrong(key.c_str(), fmt::format("{}; another value is not supported for {}",
                                         expected.is_string() ? expected.get<std::string>() : expected.dump(),
                                         family.type));
    }
  };
  check(common_fields());
  for_fields(family.fields, check);
  if (family.block->experts) check_names_of_experts(hub);
}

std::string unknown_fields_notice(const json& hub_config) {
  const ModelFamily* const family = find_family(hub_config);
  if (family == nullptr) return "";
  std::set<std::string_view> known;
  const auto add = [&](const HubFields& fields) {
    known.insert(fields.read.begin(), fields.read.end());
    known.insert(fields.unused.begin(), fields.unused.end());
    for (const FixedField& field : fields.refused) known.insert(field.key);
  };
  add(common_fields());
  for_fields(family->fields, add);
  const json decoder = decoder_part(hub_config);
  std::vector<std::string> unknown;
  for (const auto& [key, value] : decoder.items()) {
    if (!value.is_null() && !known.contains(key)) unknown.push_back(in_quotes(key));
  }
  for (const char* rope : {"rope_parameters", "rope_scaling"}) {
    if (!decoder.contains(rope) || !decoder[rope].is_object()) continue;
    const auto look = [&](const json& values, const std::string& path) {
      for (const auto& [key, value] : values.items()) {
        if (!value.is_null() && !value.is_object() && !known.contains(key) &&
            std::ranges::find(kRopeFields, key) == std::end(kRopeFields))
          unknown.push_back(in_quotes(path + key));
      }
    };
    look(decoder[rope], fmt::format("{}.", rope));
    for (const auto& [word, values] : decoder[rope].items()) {  // a rotation for each kind of layer
      if (values.is_object()) look(values, fmt::format("{}.{}.", rope, word));
    }
  }
  if (unknown.empty()) return "";
  return fmt::format("warning: config.json: not known here, and without effect: {}",
                     fmt::join(unknown, ", "));
}

nlohmann::json shortest(double value) {
  if (std::floor(value) == value && std::abs(value) < 1e15) return static_cast<std::int64_t>(value);
  return value;
}

bool flag_or_null(const HubConfig& hub, const char* key, bool absent) {
  return !hub.is_null(key) && hub.flag(key, absent);
}

void read_common(const HubConfig& hub, ConfigKeys& ours) {
  check_quantization(hub.all());
  ours["vocab_size"] = hub.positive("vocab_size");
  ours["base_emb_dim"] = hub.positive("hidden_size");
  ours["base_num_query_heads"] = hub.positive("num_attention_heads");
  ours["base_num_kv_heads"] = hub.has("num_key_value_heads") ? hub.positive("num_key_value_heads")
                                                             : hub.positive("num_attention_heads");
  ours["base_mlp_dim"] = hub.positive("intermediate_size");
  ours["base_num_decoder_layers"] = hub.positive("num_hidden_layers");
  ours["normalization_layer_epsilon"] = hub.number("rms_norm_eps");
  if (!(hub.number("rms_norm_eps") >= 0)) hub.wrong("rms_norm_eps", "0 or more");
  ours["mlp_activations"] = {"silu", "linear"};
  ours["logits_via_embedding"] = hub.flag("tie_word_embeddings", false);
  ours["normalize_embedding_logits"] = false;
  ours["num_experts"] = 1;
}

void read_rope(const HubConfig& hub, const RopeDefaults& defaults, ConfigKeys& ours) {
  const json values = rope_of(hub, defaults);
  const HubConfig rope(values, "rope ");
  check_one_rotation(rope, values);
  const std::int64_t max_position = hub.positive("max_position_embeddings");
  const double theta = rope.number("rope_theta");
  if (!(theta >= 1) || theta > 1e12) rope.wrong("rope_theta", "1 to 1e12");
  ours["rope_max_timescale"] = shortest(theta);
  ours["max_position_embeddings"] = max_position;
  ours["rope_interleave"] =
      defaults.latent && (!defaults.states_pairs || flag_or_null(hub, "rope_interleave", true));
  const bool whole = defaults.usual_share == 0;
  // A null beside the rotation takes the default's place, and says nothing.
  const bool usual = !whole && !hub.is_null("partial_rotary_factor");
  const double share = rope.number("partial_rotary_factor", usual ? defaults.usual_share : 1);
  if (whole ? share != 1 : !(share > 0 && share <= 1))
    rope.wrong("partial_rotary_factor", whole ? "1" : "more than 0, at most 1");
  ours["partial_rotary_factor"] = share;
  if (rope.has("factor") && !(rope.number("factor") >= 1)) rope.wrong("factor", "at least 1");
  const std::string kind = rope.text("rope_type", "default");
  // GGUF files may state a divisor for each frequency; transformers has no key for that.
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
    ours["original_max_position_embeddings"] = rope.has("original_max_position_embeddings")
                                                   ? rope.positive("original_max_position_embeddings")
                                                   : max_position;
    ours["rope_attention_scaling"] = false;
    refuse_latent_scale(rope, defaults.latent, "llama3");
    if (defaults.latent) ours["mscale"] = 0;
  } else if (kind == "linear") {
    ours["rope_type"] = "linear";
    ours["rope_factor"] = shortest(rope.number("factor"));
    ours["rope_attention_scaling"] = false;
    ours["original_max_position_embeddings"] = max_position;  // MLA's scores are as they are
    refuse_latent_scale(rope, defaults.latent, "linear");
  } else if (kind == "yarn") {
    read_yarn(rope, defaults.latent, max_position, ours);
  } else {
    rope.wrong("rope_type", "default, linear, llama3 or yarn");
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

const nlohmann::json& list_of_layers(const HubConfig& hub, const char* key, std::string_view what) {
  const std::int64_t layers = hub.positive("num_hidden_layers");
  const json& list = hub.at(key);
  if (!list.is_array() || std::ssize(list) != layers)
    hub.wrong(key, fmt::format("{} for each of {} layers", what, layers));
  return list;
}

void check_all_layers(const HubConfig& hub, const char* key, const nlohmann::json& only,
                      std::string_view what) {
  if (!hub.has(key)) return;
  for (const json& value : list_of_layers(hub, key, what)) {
    if (value != only) hub.wrong(key, fmt::format("{} for every layer", what));
  }
}

nlohmann::json layers_that_are(const HubConfig& hub, const char* key, const char* yes, const char* no) {
  const std::string expected = fmt::format("{} or {}", yes, no);
  const json& words = list_of_layers(hub, key, expected);
  json numbers = json::array();
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] != yes && words[i] != no)
      hub.wrong(key, fmt::format("{} for each of {} layers", expected, words.size()));
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

void read_window_of_all(const HubConfig& hub, std::int64_t usual, ConfigKeys& ours) {
  const bool stated = hub.has("sliding_window");
  if (!stated && (usual == 0 || hub.is_null("sliding_window"))) return;
  const std::int64_t window = stated ? hub.positive("sliding_window") : usual;
  ours["sliding_window_size"] = window;
}

json plain_rotation(double theta, double share) {
  return {{"rope_type", "default"}, {"rope_theta", theta}, {"partial_rotary_factor", share}};
}

std::vector<std::string> words_of_layers(const HubConfig& hub) {
  const auto windowed = layers_that_are(hub, "layer_types", "sliding_attention", "full_attention");
  std::vector<std::string> words(static_cast<std::size_t>(hub.positive("num_hidden_layers")),
                                 "full_attention");
  for (const json& layer : windowed) words[layer.get<std::size_t>()] = "sliding_attention";
  return words;
}

void read_two_kinds(const HubConfig& hub, const TwoKinds& kinds, ConfigKeys& ours) {
  // The keys of a kind's rotation.
  const auto rotation = [&](const char* word, const json& usual) {
    json one = hub.all();
    json rope = hub.has("rope_parameters") ? hub.at("rope_parameters") : usual;
    if (rope.is_object() && rope.contains(word)) rope = rope[word];
    for (const char* flat : {"rope_theta", "rope_scaling", "partial_rotary_factor"}) one.erase(flat);
    one["rope_parameters"] = rope;
    ConfigKeys keys;
    read_rope(HubConfig(one), {.usual_share = 1}, keys);
    return keys;
  };
  ours["sliding_window_size"] = 0;
  const ConfigKeys full = rotation("full_attention", kinds.full_rope);
  for (const auto& [key, value] : full) ours[key] = value;
  if (std::ranges::count(kinds.words, "sliding_attention") == 0) return;
  ConfigKeys windowed = rotation("sliding_attention", kinds.windowed_rope);
  for (const auto& [key, value] : kinds.windowed) windowed[key] = value;
  json own = json::object();
  for (const auto& [key, value] : windowed) {
    if (!ours.contains(key) || ours[key] != value) own[key] = value;
  }
  ours["attention_kinds"] = {{"full_attention", json::object()}, {"sliding_attention", own}};
  ours["layer_kinds"] = kinds.words;
}

namespace {

// The kinds of attention of the layers, prediction layers included, each once.
std::vector<const AttentionKind*> kinds_where(const ModelConfig& model, bool windowed) {
  std::vector<const AttentionKind*> kinds;
  for (const LayerSpec& layer : model.layer_specs) {
    const AttentionKind* const kind = layer.attention < 0 ? nullptr : &model.attention_of(layer);
    if (kind != nullptr && (kind->window > 0) == windowed && std::ranges::find(kinds, kind) == kinds.end())
      kinds.push_back(kind);
  }
  return kinds;
}

const AttentionKind* first_kind(const ModelConfig& model, bool windowed) {
  const std::vector<const AttentionKind*> kinds = kinds_where(model, windowed);
  return kinds.empty() ? nullptr : kinds.front();
}

}  // namespace

const AttentionKind* windowed_kind(const ModelConfig& model) {
  return first_kind(model, true);
}

const AttentionKind* full_kind(const ModelConfig& model) {
  return first_kind(model, false);
}

bool has_two_kinds(const ModelConfig& model) {
  return kinds_where(model, true).size() <= 1 && kinds_where(model, false).size() <= 1;
}

void refuse_windows(const HubConfig& hub, const char* kind_of_layers) {
  check_all_layers(hub, "layer_types", kind_of_layers, kind_of_layers);
}

namespace {

HubJson rope_scaling(const Config& config, const AttentionKind& kind) {
  const RopeConfig& rope = kind.rope;
  if (rope.type == "llama3.1") {
    return {{"rope_type", "llama3"},
            {"factor", rope.factor},
            {"low_freq_factor", rope.low_frequency_factor},
            {"high_freq_factor", rope.high_frequency_factor},
            {"original_max_position_embeddings", rope.original_positions}};
  }
  if (rope.type == "linear") return {{"rope_type", "linear"}, {"factor", rope.factor}};
  if (rope.type != "yarn") return nullptr;
  HubJson yarn = {{"rope_type", "yarn"},
                  {"factor", rope.factor},
                  {"beta_fast", shortest(rope.beta_fast)},
                  {"beta_slow", shortest(rope.beta_slow)},
                  {"original_max_position_embeddings", rope.original_positions}};
  if (!rope.truncate) yarn["truncate"] = false;
  // Both present and equal leave the rotated vectors alone; the second scales MLA's scores.
  const double mscale = kind.mla ? config.get_float("mscale") : 1.0;
  if (!rope.attention_scaling && mscale == 0)
    yarn["attention_factor"] = 1.0;
  else if (!rope.attention_scaling)
    yarn["mscale"] = yarn["mscale_all_dim"] = mscale;
  else if (kind.mla && mscale != 0)
    yarn["mscale_all_dim"] = mscale;
  return yarn;
}

}  // namespace

HubJson write_common(const Config& config, const ModelConfig& model) {
  return {{"hidden_act", "silu"},
          {"hidden_size", model.emb},
          {"intermediate_size", model.mlp().width},
          {"num_hidden_layers", model.layers},
          {"num_attention_heads", model.attention().heads},
          {"vocab_size", model.vocab},
          {"max_position_embeddings", config.get_int("max_position_embeddings")},
          {"rms_norm_eps", config.get_float("normalization_layer_epsilon")},
          {"rope_theta", shortest(model.attention().rope.theta)},
          {"rope_scaling", rope_scaling(config, model.attention())},
          {"tie_word_embeddings", model.tied},
          {"attention_bias", model.attention().bias},
          {"attention_dropout", 0.0},
          {"initializer_range", 0.02},
          {"use_cache", true}};
}

HubJson layer_types(const ModelConfig& model) {
  HubJson kinds = HubJson::array();
  for (const LayerSpec& layer :
       std::span<const LayerSpec>(model.layer_specs).first(static_cast<std::size_t>(model.layers)))
    kinds.push_back(model.seen_in(layer).window > 0 ? "sliding_attention" : "full_attention");
  return kinds;
}

void write_two_kinds(const Config& config, const ModelConfig& model, HubJson& hub) {
  HubJson ropes;
  const auto add = [&](const char* word, const AttentionKind* kind) {
    if (kind == nullptr) return;
    HubJson rope = rope_scaling(config, *kind);
    if (rope.is_null()) rope = {{"rope_type", "default"}};
    rope["rope_theta"] = shortest(kind->rope.theta);
    rope["partial_rotary_factor"] = kind->rope.share;
    ropes[word] = rope;
  };
  add("full_attention", full_kind(model));
  add("sliding_attention", windowed_kind(model));
  hub.erase("rope_theta");
  hub.erase("rope_scaling");
  hub["rope_parameters"] = ropes;
  hub["layer_types"] = layer_types(model);
  if (model.window() > 0) hub["sliding_window"] = model.window();
}

void write_grouped_attention(const ModelConfig& model, HubJson& hub) {
  hub["num_key_value_heads"] = model.attention().kv_heads;
  hub["head_dim"] = model.attention().head_dim;
}

}  // namespace switchyard

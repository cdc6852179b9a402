// The keys below a GGUF file's architecture that its reader has no use for.
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/error.h"
#include "core/json_file.h"
#include "gguf/architectures.h"

namespace switchyard {
namespace {

using nlohmann::json;

// A key of llama.cpp that changes what a model computes, and the values, a list in JSON, with which it does
// not: those of a part that the model lacks, or a factor of one (0 is as good as none).
struct NeutralKey {
  std::string_view key, values;
};

constexpr NeutralKey kNeutralKeys[] = {
    {"embedding_scale", "[0, 1]"},
    {"residual_scale", "[0, 1]"},
    {"logit_scale", "[0, 1]"},
    {"attention.output_scale", "[0, 1]"},
    {"attention.value_scale", "[0, 1]"},
    {"attention.temperature_scale", "[0]"},
    {"attn_logit_softcapping", "[0]"},
    {"router_logit_softcapping", "[0]"},
    {"final_logit_softcapping", "[0]"},
    {"attention.max_alibi_bias", "[0]"},
    {"attention.clamp_kqv", "[0]"},
    {"attention.causal", "[true]"},
    {"attention.layer_norm_epsilon", "[]"},
    {"attention.group_norm_epsilon", "[]"},
    {"attention.relative_buckets_count", "[0]"},
    {"attention.shared_kv_layers", "[0]"},
    {"attention.indexer.head_count", "[0]"},
    {"attention.indexer.key_length", "[0]"},
    {"attention.indexer.top_k", "[0]"},
    {"attention.q_lora_rank", "[0]"},
    {"attention.kv_lora_rank", "[0]"},
    {"attention.recurrent_layers", "[false, 0]"},
    {"full_attention_interval", "[0, 1]"},
    {"ssm.conv_kernel", "[0]"},
    {"ssm.inner_size", "[0]"},
    {"ssm.state_size", "[0]"},
    {"ssm.time_step_rank", "[0]"},
    {"ssm.group_count", "[0]"},
    {"kda.head_dim", "[0]"},
    {"wkv.head_size", "[0]"},
    {"shortconv.l_cache", "[0]"},
    {"use_parallel_residual", "[false]"},
    {"swin_norm", "[false]"},
    {"token_shift_count", "[0]"},
    {"rescale_every_n_layers", "[0]"},
    {"swiglu_clamp_exp", "[0]"},
    {"swiglu_clamp_shexp", "[0]"},
    {"activation_sparsity_scale", "[0]"},
    {"embedding_length_per_layer_input", "[0]"},
    {"altup.num_inputs", "[0, 1]"},
    {"hyper_connection.count", "[0, 1]"},
    {"hash_layer_count", "[0]"},
    {"leading_dense_block_count", "[0]"},
    {"interleave_moe_layer_step", "[0, 1]"},
    {"moe_every_n_layers", "[0, 1]"},
    {"moe_latent_size", "[0]"},
    {"expert_chunk_feed_forward_length", "[0]"},
    {"expert_weights_scale", "[0, 1]"},
    {"expert_group_count", "[0, 1]"},
    {"expert_group_scale", "[0, 1]"},
    {"experts_per_group", "[0]"},
    {"rope.scaling.alpha", "[0, 1]"},
    {"rope.scaling.yarn_log_multiplier", "[0]"},
};

// Keys of layers with windows. Their values must be those of the keys of all layers.
constexpr std::pair<std::string_view, std::string_view> kKeysOfWindows[] = {
    {"rope.freq_base_swa", "rope.freq_base"},
    {"rope.dimension_count_swa", "rope.dimension_count"},
    {"attention.key_length_swa", "attention.key_length"},
    {"attention.value_length_swa", "attention.value_length"},
};

// Keys that say again what other keys or tensors say, belong to a kind of rotation that the file has not, or
// tell about something other than a text's logits.
constexpr std::string_view kUnusedKeys[] = {
    "vocab_size",
    "feed_forward_length",
    "features_length",
    "embedding_length_out",
    "tensor_data_layout",
    "pooling_type",
    "classifier.output_labels",
    "n_deepstack_layers",
    "expert_used_count",
    "expert_group_used_count",
    "expert_shared_count",
    "expert_feed_forward_length",
    "expert_shared_feed_forward_length",
    "attention.key_length",
    "attention.value_length",
    "attention.sliding_window_pattern",
    "attention.temperature_length",
    "rope.dimension_sections",
    "rope.scale_linear",
    "rope.scaling.factor",
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
};

// True where a value, or each of a list, is one of `values`.
bool is_one_of(const json& value, const json& values) {
  if (value.is_array())
    return !value.empty() &&
           std::all_of(value.begin(), value.end(), [&](const json& one) { return is_one_of(one, values); });
  return std::find(values.begin(), values.end(), value) != values.end();
}

class OtherKeys {
 public:
  OtherKeys(const GgufFile& file, const GgufArchitecture& architecture, const GgufMetadata& metadata,
            const json& config)
      : file_(file), architecture_(architecture), metadata_(metadata), config_(config) {}

  std::string check() const {
    std::vector<std::string> unknown;
    for (const std::string& key : metadata_.unread()) {
      const json value = metadata_.value(key);
      if (is_of_router(key, value) || is_of_attention(key) || is_of_windows(key, value) ||
          is_neutral(key, value) || std::ranges::find(kUnusedKeys, key) != std::end(kUnusedKeys))
        continue;
      unknown.push_back(in_quotes(fmt::format("{}.{}", architecture_.name, key)));
    }
    if (unknown.empty()) return "";
    return fmt::format("warning: {}: not known here, and without effect: {}", file_.path(),
                       fmt::join(unknown, ", "));
  }

 private:
  [[noreturn]] void refuse(std::string_view key, std::string_view expected) const {
    metadata_.wrong(key,
                    fmt::format("{}; other values are not supported for {}", expected, architecture_.name));
  }

  bool is_of_router(const std::string& key, const json& value) const {
    if (key == "expert_gating_func") {
      if (value != 0 && value != static_cast<std::int64_t>(architecture_.gating)) {
        constexpr const char* kNames[] = {"1 (softmax)", "2 (sigmoid)", "3 (softmax of the chosen)"};
        refuse(key, kNames[architecture_.gating - kGgufSoftmax]);
      }
      return true;
    }
    if (key != "expert_weights_norm") return false;
    if (value != architecture_.divides_weights) refuse(key, architecture_.divides_weights ? "true" : "false");
    return true;
  }

  // The factor of scores, and the windows of a model that has none.
  bool is_of_attention(const std::string& key) const {
    if (key == "attention.scale") {
      const auto number = [&](const char* field) { return config_.value(field, std::int64_t{0}); };
      const bool latent = config_.contains("kv_lora_rank");
      const std::int64_t heads = number("num_attention_heads"),
                         width = latent ? number("qk_nope_head_dim") + number("qk_rope_head_dim")
                                 : config_.contains("head_dim") ? number("head_dim")
                                 : heads > 0                    ? number("hidden_size") / heads
                                                                : 0;
      const double usual = 1 / std::sqrt(static_cast<double>(std::max<std::int64_t>(width, 1)));
      const double scale = metadata_.number(key);
      constexpr double kRounding = 1e-6;
      if (scale != 0 && std::abs(scale - usual) > kRounding * usual) refuse(key, fmt::format("{}", usual));
      return true;
    }
    if (key != "attention.sliding_window") return false;
    const std::int64_t window = metadata_.integer(key);
    if (window != 0 && window < config_.at("max_position_embeddings").get<std::int64_t>())
      refuse(key, "0 (none), or at least context_length");
    return true;
  }

  bool is_of_windows(const std::string& key, const json& value) const {
    for (const auto& [of_windows, of_all] : kKeysOfWindows) {
      if (key != of_windows) continue;
      if (value != metadata_.value(of_all)) refuse(key, fmt::format("{}'s value", of_all));
      return true;
    }
    return false;
  }

  bool is_neutral(const std::string& key, const json& value) const {
    const auto found = std::ranges::find(kNeutralKeys, std::string_view(key), &NeutralKey::key);
    if (found == std::end(kNeutralKeys)) return false;
    const json values = json::parse(found->values);
    if (is_one_of(value, values)) return true;
    std::vector<std::string> names;
    for (const json& neutral : values) names.push_back(neutral.dump());
    refuse(key, names.empty() ? "none" : fmt::format("{}", fmt::join(names, " or ")));
  }

  const GgufFile& file_;
  const GgufArchitecture& architecture_;
  const GgufMetadata& metadata_;
  const json& config_;
};

}  // namespace

std::string check_other_keys(const GgufFile& file, const GgufArchitecture& architecture,
                             const GgufMetadata& metadata, const json& config) {
  return OtherKeys(file, architecture, metadata, config).check();
}

}  // namespace switchyard

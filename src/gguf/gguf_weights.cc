#include "gguf/gguf_weights.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "checkpoint/json_file.h"
#include "core/error.h"
#include "gguf/metadata.h"

namespace switchyard {
namespace {

using nlohmann::json;

struct Renamed {
  std::string_view gguf, hub;
};

constexpr Renamed kTopNames[] = {
    {"token_embd.weight", "model.embed_tokens.weight"},
    {"output_norm.weight", "model.norm.weight"},
    {"output.weight", "lm_head.weight"},
};

// Below "blk.<i>." and below "model.layers.<i>.".
constexpr Renamed kLayerNames[] = {
    {"attn_norm.weight", "input_layernorm.weight"},
    {"ffn_norm.weight", "post_attention_layernorm.weight"},
    {"attn_q.weight", "self_attn.q_proj.weight"},
    {"attn_k.weight", "self_attn.k_proj.weight"},
    {"attn_v.weight", "self_attn.v_proj.weight"},
    {"attn_output.weight", "self_attn.o_proj.weight"},
    {"attn_q.bias", "self_attn.q_proj.bias"},
    {"attn_k.bias", "self_attn.k_proj.bias"},
    {"attn_v.bias", "self_attn.v_proj.bias"},
    {"attn_output.bias", "self_attn.o_proj.bias"},
    {"attn_q_norm.weight", "self_attn.q_norm.weight"},
    {"attn_k_norm.weight", "self_attn.k_norm.weight"},
    {"attn_q_a.weight", "self_attn.q_a_proj.weight"},
    {"attn_q_a_norm.weight", "self_attn.q_a_layernorm.weight"},
    {"attn_q_b.weight", "self_attn.q_b_proj.weight"},
    {"attn_kv_a_mqa.weight", "self_attn.kv_a_proj_with_mqa.weight"},
    {"attn_kv_a_norm.weight", "self_attn.kv_a_layernorm.weight"},
    {"attn_kv_b.weight", "self_attn.kv_b_proj.weight"},
    {"ffn_gate.weight", "mlp.gate_proj.weight"},
    {"ffn_up.weight", "mlp.up_proj.weight"},
    {"ffn_down.weight", "mlp.down_proj.weight"},
    {"ffn_gate_inp.weight", "mlp.gate.weight"},
    {"exp_probs_b.bias", "mlp.gate.e_score_correction_bias"},
    {"ffn_gate_shexp.weight", "mlp.shared_experts.gate_proj.weight"},
    {"ffn_up_shexp.weight", "mlp.shared_experts.up_proj.weight"},
    {"ffn_down_shexp.weight", "mlp.shared_experts.down_proj.weight"},
};

// Of gpt-oss. Experts' biases are [experts, outputs] on both sides (models/families/gpt_oss.cc).
constexpr Renamed kGptOssNames[] = {
    {"attn_sinks.weight", "self_attn.sinks"},
    {"post_attention_norm.weight", "post_attention_layernorm.weight"},
    {"ffn_gate_inp.weight", "mlp.router.weight"},
    {"ffn_gate_inp.bias", "mlp.router.bias"},
    {"ffn_gate_exps.bias", "mlp.experts.gate_proj_bias"},
    {"ffn_up_exps.bias", "mlp.experts.up_proj_bias"},
    {"ffn_down_exps.bias", "mlp.experts.down_proj_bias"},
};

// One tensor for all experts there, one an expert here: the end of its name.
constexpr Renamed kExpertNames[] = {
    {"ffn_gate_exps.weight", "gate_proj.weight"},
    {"ffn_up_exps.weight", "up_proj.weight"},
    {"ffn_down_exps.weight", "down_proj.weight"},
};
constexpr Renamed kMixtralExpertNames[] = {
    {"ffn_gate_exps.weight", "w1.weight"},
    {"ffn_up_exps.weight", "w3.weight"},
    {"ffn_down_exps.weight", "w2.weight"},
};

const Renamed* find(std::span<const Renamed> names, std::string_view gguf) {
  const auto found = std::ranges::find(names, gguf, &Renamed::gguf);
  return found == names.end() ? nullptr : &*found;
}

json rope_of(const GgufMetadata& metadata) {
  json rope{{"rope_theta", metadata.number("rope.freq_base", 10000)}, {"rope_type", "default"}};
  const std::string scaling = metadata.has("rope.scaling.type") ? metadata.text("rope.scaling.type") : "none";
  if (scaling == "none") return rope;
  if (scaling != "yarn") metadata.wrong("rope.scaling.type", "none or yarn");
  rope["rope_type"] = "yarn";
  rope["factor"] = metadata.number("rope.scaling.factor");
  rope["original_max_position_embeddings"] = metadata.integer("rope.scaling.original_context_length");
  if (metadata.has("rope.scaling.yarn_log_multiplier")) {
    // A tenth of mscale_all_dim, which equals mscale in all models that have both.
    const double mscale = metadata.number("rope.scaling.yarn_log_multiplier") * 10;
    rope["mscale"] = rope["mscale_all_dim"] = mscale;
  }
  if (metadata.has("rope.scaling.yarn_beta_fast"))
    rope["beta_fast"] = metadata.number("rope.scaling.yarn_beta_fast");
  if (metadata.has("rope.scaling.yarn_beta_slow"))
    rope["beta_slow"] = metadata.number("rope.scaling.yarn_beta_slow");
  return rope;
}

void add_deepseek(const GgufMetadata& metadata, json& config) {
  const std::int64_t gating = metadata.integer("expert_gating_func", 1);
  if (gating != 1 && gating != 2) metadata.wrong("expert_gating_func", "1 (softmax) or 2 (sigmoid)");
  const bool third = gating == 2;
  config["model_type"] = third ? "deepseek_v3" : "deepseek_v2";
  const std::int64_t rope = metadata.integer("rope.dimension_count"),
                     groups = metadata.integer("expert_group_count", 1);
  // Files from before 2025 have the widths of one head in the keys without "_mla".
  config["qk_rope_head_dim"] = rope;
  config["qk_nope_head_dim"] =
      metadata.integer(metadata.has("attention.key_length_mla") ? "attention.key_length_mla"
                                                                : "attention.key_length") -
      rope;
  config["v_head_dim"] = metadata.integer(
      metadata.has("attention.value_length_mla") ? "attention.value_length_mla" : "attention.value_length");
  config["kv_lora_rank"] = metadata.integer("attention.kv_lora_rank");
  if (const std::int64_t rank = metadata.integer("attention.q_lora_rank", 0); rank > 0)
    config["q_lora_rank"] = rank;
  config["first_k_dense_replace"] = metadata.integer("leading_dense_block_count", 0);
  config["n_routed_experts"] = metadata.integer("expert_count");
  config["n_shared_experts"] = metadata.integer("expert_shared_count", 0);
  config["moe_intermediate_size"] = metadata.integer("expert_feed_forward_length");
  config["routed_scaling_factor"] = metadata.number("expert_weights_scale", 1);
  config["norm_topk_prob"] = metadata.flag("expert_weights_norm", false);
  config["n_group"] = groups;
  config["topk_group"] = metadata.integer("expert_group_used_count", 1);
  config["scoring_func"] = third ? "sigmoid" : "softmax";
  config["topk_method"] = third ? "noaux_tc" : groups > 1 ? "group_limited_greedy" : "greedy";
  config.erase("head_dim");
}

}  // namespace

json hub_config_of(const GgufFile& file) {
  const GgufMetadata general(file, "general");
  const std::string architecture = general.text("architecture");
  const GgufMetadata metadata(file, architecture);
  const std::int64_t experts = metadata.integer("expert_count", 0),
                     heads = metadata.integer("attention.head_count"),
                     width = metadata.integer("embedding_length");
  json config{{"hidden_size", width},
              {"num_attention_heads", heads},
              {"num_key_value_heads", metadata.integer("attention.head_count_kv", heads)},
              {"intermediate_size", metadata.integer("feed_forward_length", 0)},
              {"num_hidden_layers", metadata.integer("block_count")},
              {"rms_norm_eps", metadata.number("attention.layer_norm_rms_epsilon")},
              {"max_position_embeddings", metadata.integer("context_length")},
              {"vocab_size", file.at("token_embd.weight").shape[0]},
              {"tie_word_embeddings", !file.entries().contains("output.weight")},
              {"hidden_act", "silu"},
              {"rope_parameters", rope_of(metadata)}};
  if (metadata.has("attention.key_length")) config["head_dim"] = metadata.integer("attention.key_length");
  if (experts > 0) config["num_experts_per_tok"] = metadata.integer("expert_used_count");
  // Factors of Llama 3.1's stretched positions: numbers that a config.json has no place for.
  if (file.entries().contains("rope_freqs.weight"))
    fail_usage(
        "[gguf] {}: has rope_freqs.weight (positions stretched as in Llama 3.1), which is not supported",
        file.path());
  if (architecture == "llama") {
    config["model_type"] = experts > 0 ? "mixtral" : "llama";
    if (experts > 0) config["num_local_experts"] = experts;
  } else if (architecture == "qwen3") {
    config["model_type"] = "qwen3";
  } else if (architecture == "qwen3moe") {
    config["model_type"] = "qwen3_moe";
    config["num_experts"] = experts;
    config["moe_intermediate_size"] = metadata.integer("expert_feed_forward_length");
    config["norm_topk_prob"] = true;  // of all models of this architecture
    if (config["intermediate_size"] == 0) config["intermediate_size"] = config["moe_intermediate_size"];
  } else if (architecture == "deepseek2") {
    config["num_key_value_heads"] = heads;
    add_deepseek(metadata, config);
  } else if (architecture == "gpt-oss") {
    config["model_type"] = "gpt_oss";
    config["attention_bias"] = true;
    config["num_local_experts"] = experts;
    config["intermediate_size"] = metadata.integer("expert_feed_forward_length");
    config["sliding_window"] = metadata.integer("attention.sliding_window");
    config["rope_parameters"]["truncate"] = false;  // of all models of this architecture
  } else {
    general.wrong("architecture", "llama, qwen3, qwen3moe, deepseek2 or gpt-oss");
  }
  return config;
}

GgufWeights::GgufWeights(GgufFile file, const json& config) : file_(std::move(file)) {
  for (const auto& [tensor, entry] : file_.entries()) add(tensor, config);
}

void GgufWeights::add(const std::string& tensor, const json& config) {
  const GgufFile::Entry& entry = file_.at(tensor);
  if (const Renamed* top = find(kTopNames, tensor)) {
    parts_[std::string(top->hub)] = {.tensor = tensor, .second = {}, .shape = entry.shape};
    return;
  }
  const std::size_t dot = tensor.starts_with("blk.") ? tensor.find('.', 4) : std::string::npos;
  if (dot == std::string::npos)
    fail_usage("[gguf] {}: tensor {} is not one of a model that is known here", path(), in_quotes(tensor));
  const std::string layer = tensor.substr(0, dot + 1), below = tensor.substr(dot + 1),
                    prefix = "model.layers." + layer.substr(4);
  const std::string type = config.at("model_type").get<std::string>();
  const bool mixtral = type == "mixtral", permuted = mixtral || type == "llama";
  if (const Renamed* expert = find(mixtral ? std::span(kMixtralExpertNames) : std::span(kExpertNames), below))
    return add_experts(tensor, prefix + (mixtral ? "block_sparse_moe.experts." : "mlp.experts."),
                       std::string(expert->hub));
  if (below == "attn_k_b.weight")
    return add_latent_up_projection(layer, prefix + "self_attn.kv_b_proj.weight", config);
  if (below == "attn_v_b.weight" && file_.entries().contains(layer + "attn_k_b.weight")) return;  // with it
  const Renamed* name = type == "gpt_oss" ? find(kGptOssNames, below) : nullptr;
  if (name == nullptr) name = find(kLayerNames, below);
  if (name == nullptr)
    fail_usage("[gguf] {}: tensor {} is not one of a {} model", path(), in_quotes(tensor), type);
  Part part{.tensor = tensor, .second = {}, .shape = entry.shape};
  if (permuted && (below == "attn_q.weight" || below == "attn_k.weight")) {
    part.form = Part::Form::permuted;
    const std::int64_t heads =
        config.at(below == "attn_q.weight" ? "num_attention_heads" : "num_key_value_heads")
            .get<std::int64_t>();
    if (heads == 0 || entry.shape[0] % (2 * heads) != 0)
      fail_usage("[gguf] {}: tensor {} has {} rows, expected a multiple of twice {} heads", path(),
                 in_quotes(tensor), entry.shape[0], heads);
    part.head = entry.shape[0] / heads;
  }
  const bool router = mixtral && below == "ffn_gate_inp.weight";
  parts_[prefix + (router ? "block_sparse_moe.gate.weight" : std::string(name->hub))] = part;
}

// [experts, out, in] -> one [out, in] an expert.
void GgufWeights::add_experts(const std::string& tensor, const std::string& name, const std::string& suffix) {
  const Shape& shape = file_.at(tensor).shape;
  if (shape.size() != 3)
    fail_usage("[gguf] {}: tensor {} is {}, expected [experts, out, in]", path(), in_quotes(tensor),
               to_string(shape));
  for (std::int64_t e = 0; e < shape[0]; ++e)
    parts_[fmt::format("{}{}.{}", name, e, suffix)] = {
        .tensor = tensor, .second = {}, .first = e * shape[1], .shape = {shape[1], shape[2]}};
}

// attn_k_b [heads, kv_lora, nope] and attn_v_b [heads, v, kv_lora] -> kv_b_proj [heads · (nope + v),
// kv_lora].
void GgufWeights::add_latent_up_projection(const std::string& layer, const std::string& name,
                                           const json& config) {
  const std::string keys = layer + "attn_k_b.weight", values = layer + "attn_v_b.weight";
  const Shape &k = file_.at(keys).shape, &v = file_.at(values).shape;
  const auto number = [&](const char* key) { return config.at(key).get<std::int64_t>(); };
  const std::int64_t heads = number("num_attention_heads"), rank = number("kv_lora_rank"),
                     nope = number("qk_nope_head_dim"), width = number("v_head_dim");
  if (k != Shape{heads, rank, nope} || v != Shape{heads, width, rank})
    fail_usage("[gguf] {}: tensors {} {} and {} {}, expected {} and {}", path(), keys, to_string(k), values,
               to_string(v), to_string(Shape{heads, rank, nope}), to_string(Shape{heads, width, rank}));
  parts_[name] = {.form = Part::Form::kv_b,
                  .tensor = keys,
                  .second = values,
                  .head = nope,
                  .shape = {heads * (nope + width), rank}};
}

std::vector<std::string> GgufWeights::names() const {
  std::vector<std::string> names;
  for (const auto& [name, part] : parts_) names.push_back(name);
  return names;
}

const GgufWeights::Part& GgufWeights::at(const std::string& name) const {
  const auto found = parts_.find(name);
  if (found == parts_.end())
    fail_usage("[gguf] {}: no tensor that would be {} in transformers", path(), in_quotes(name));
  return found->second;
}

std::string GgufWeights::dtype(const std::string& name) const {
  const Part& part = at(name);
  return part.form != Part::Form::kv_b && file_.at(part.tensor).type->name == "BF16" ? "BF16" : "F32";
}

Tensor GgufWeights::read(const std::string& name) const {
  const Part& part = at(name);
  const Tensor whole =
      rows_of(part, 0, part.shape.size() == 1 ? 1 : part.shape[0], false).reshaped(part.shape);
  return dtype(name) == "BF16" ? whole.cast(DType::bf16) : whole;
}

Tensor GgufWeights::take_rows(const std::string& name, std::int64_t begin, std::int64_t end) const {
  const Part& part = at(name);
  if (part.shape.size() == 1) return read(name).slice_rows(begin, end);
  const Tensor rows = rows_of(part, begin, end, true);
  return dtype(name) == "BF16" ? rows.cast(DType::bf16) : rows;
}

// The tensor's row that is a weight's row. Row j of a permuted head is row 2 j of the head there, row j +
// head / 2 is row 2 j + 1.
std::int64_t GgufWeights::row_there(const Part& part, std::int64_t row) {
  if (part.form == Part::Form::rows) return part.first + row;
  const std::int64_t within = row % part.head, half = part.head / 2;
  return row - within + (within < half ? 2 * within : 2 * (within - half) + 1);
}

std::optional<DType> GgufWeights::packed_dtype(const std::string& name) const {
  const Part& part = at(name);
  if (part.form == Part::Form::kv_b || part.shape.size() != 2) return std::nullopt;
  const std::optional<DType> packed = packed_dtype_of(*file_.at(part.tensor).type);
  if (!packed || part.shape[0] % kBlockOutputs != 0 || part.shape[1] % block_inputs(*packed) != 0)
    return std::nullopt;
  return packed;
}

Tensor GgufWeights::take_blocks(const std::string& name) const {
  const std::optional<DType> packed = packed_dtype(name);
  CHECK(packed, "{} has no blocks", name);
  const Part& part = at(name);
  const GgufType& type = *file_.at(part.tensor).type;
  const std::int64_t groups = part.shape[1] / kGroupInputs, columns = part.shape[0] / kBlockOutputs;
  const std::int64_t of_block = groups_of(*packed), of_stored = type.values / kGroupInputs;
  Tensor blocks(*packed, {groups / of_block, columns});
  for (std::int64_t column = 0; column < columns; ++column) {
    const std::byte* rows[kBlockOutputs];
    for (std::int64_t i = 0; i < kBlockOutputs; ++i) {
      const std::int64_t there = row_there(part, column * kBlockOutputs + i);
      rows[i] = file_.row_bytes(part.tensor, there, there + 1).data();
    }
    for (std::int64_t g = 0; g < groups; ++g) {
      std::byte* const block =
          blocks.raw() + static_cast<std::size_t>(g / of_block * columns + column) * size_of(*packed);
      for (std::int64_t i = 0; i < kBlockOutputs; ++i) {
        const std::optional<PackedGroup> group =
            packed_group_of(type, rows[i] + g / of_stored * type.bytes, g % of_stored);
        if (!group)
          fail_usage(
              "[gguf] {}: tensor {} has an exponent of 255, which {} cannot hold: expected "
              "weight_format=dense",
              path(), in_quotes(part.tensor), name_of(*packed));
        write_group(*packed, *group, block, i, g % of_block);
      }
    }
  }
  const std::int64_t first = part.form == Part::Form::rows ? part.first : 0;
  file_.release_rows(part.tensor, first, first + part.shape[0]);
  return blocks;
}

Tensor GgufWeights::rows_of(const Part& part, std::int64_t begin, std::int64_t end, bool release) const {
  const auto take = [&](const std::string& tensor, std::int64_t from, std::int64_t to) {
    Tensor rows = file_.read_rows(tensor, from, to);
    if (release) file_.release_rows(tensor, from, to);
    return rows;
  };
  if (part.form == Part::Form::rows) return take(part.tensor, part.first + begin, part.first + end);
  const std::int64_t columns = part.shape[1];
  Tensor out(DType::f32, {end - begin, columns});
  float* to = out.data<float>();
  if (part.form == Part::Form::permuted) {
    for (std::int64_t row = begin; row < end; ++row, to += columns) {
      const std::int64_t there = row_there(part, row);
      const Tensor one = take(part.tensor, there, there + 1);
      std::copy_n(one.data<float>(), columns, to);
    }
    return out;
  }
  const std::int64_t nope = part.head, width = file_.at(part.second).shape[1], block = nope + width;
  for (std::int64_t row = begin; row < end;) {
    const std::int64_t head = row / block, within = row % block;
    if (within < nope) {
      const std::int64_t stop = std::min(end, head * block + nope);
      const Tensor keys = take(part.tensor, head * columns, (head + 1) * columns);  // [kv_lora, nope]
      for (; row < stop; ++row, to += columns) {
        const float* const from = keys.data<float>() + row % block;
        for (std::int64_t c = 0; c < columns; ++c) to[c] = from[c * nope];
      }
    } else {
      const std::int64_t stop = std::min(end, (head + 1) * block), first = head * width + within - nope;
      const Tensor values = take(part.second, first, first + stop - row);
      std::copy_n(values.data<float>(), values.size(), to);
      to += values.size();
      row = stop;
    }
  }
  return out;
}

}  // namespace switchyard

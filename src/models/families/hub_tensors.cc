#include "models/families/hub_tensors.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>
#include <set>
#include <string_view>

#include "checkpoint/block_scaled.h"
#include "checkpoint/transpose.h"
#include "core/error.h"
#include "core/json_file.h"

namespace switchyard {
namespace {

constexpr TensorRule kLayerRules[] = {
    {"pre_attention_norm", "input_layernorm.weight", TensorForm::vector},
    {"post_attention_norm", "post_attention_layernorm.weight", TensorForm::vector},
    {"attention.query", "self_attn.q_proj.weight"},
    {"attention.key", "self_attn.k_proj.weight"},
    {"attention.value", "self_attn.v_proj.weight"},
    {"attention.out", "self_attn.o_proj.weight"},
    {"attention.query_bias", "self_attn.q_proj.bias", TensorForm::vector},
    {"attention.key_bias", "self_attn.k_proj.bias", TensorForm::vector},
    {"attention.value_bias", "self_attn.v_proj.bias", TensorForm::vector},
    {"attention.out_bias", "self_attn.o_proj.bias", TensorForm::vector},
    {"attention.q_norm", "self_attn.q_norm.weight", TensorForm::vector},
    {"attention.k_norm", "self_attn.k_norm.weight", TensorForm::vector},
    {"attention.wq_a", "self_attn.q_a_proj.weight"},
    {"attention.q_a_norm", "self_attn.q_a_layernorm.weight", TensorForm::vector},
    {"attention.wq_b", "self_attn.q_b_proj.weight"},
    {"attention.wkv_a", "self_attn.kv_a_proj_with_mqa.weight"},
    {"attention.kv_a_norm", "self_attn.kv_a_layernorm.weight", TensorForm::vector},
    {"attention.wq_a_bias", "self_attn.q_a_proj.bias", TensorForm::vector},
    {"attention.wkv_a_bias", "self_attn.kv_a_proj_with_mqa.bias", TensorForm::vector},
    {"attention.wkv_b", "self_attn.kv_b_proj.weight"},
    {"attention.indexer.wq_b", "self_attn.indexer.wq_b.weight"},
    {"attention.indexer.wk", "self_attn.indexer.wk.weight"},
    {"attention.indexer.k_norm", "self_attn.indexer.k_norm.weight", TensorForm::vector},
    {"attention.indexer.k_norm_bias", "self_attn.indexer.k_norm.bias", TensorForm::vector},
    {"attention.indexer.weights", "self_attn.indexer.weights_proj.weight"},
    {"mlp.wi_0", "mlp.gate_proj.weight"},
    {"mlp.wi_1", "mlp.up_proj.weight"},
    {"mlp.wo", "mlp.down_proj.weight"},
    {"moe.gate", "mlp.gate.weight"},
    {"moe.gate_bias", "mlp.gate.e_score_correction_bias", TensorForm::vector},
    {"moe.wi_0", "mlp.experts.{}.gate_proj.weight"},
    {"moe.wi_1", "mlp.experts.{}.up_proj.weight"},
    {"moe.wo", "mlp.experts.{}.down_proj.weight"},
    {"moe.shared.wi_0", "mlp.shared_experts.gate_proj.weight"},
    {"moe.shared.wi_1", "mlp.shared_experts.up_proj.weight"},
    {"moe.shared.wo", "mlp.shared_experts.down_proj.weight"},
    {"prediction.token_norm", "enorm.weight", TensorForm::vector},
    {"prediction.hidden_norm", "hnorm.weight", TensorForm::vector},
    {"prediction.projection", "eh_proj.weight"},
    {"prediction.final_norm", "shared_head.norm.weight", TensorForm::vector},
};
constexpr TensorRule kTopRules[] = {
    {"embedding", "model.embed_tokens.weight", TensorForm::table},
    {"final_norm", "model.norm.weight", TensorForm::vector},
    {"head", "lm_head.weight"},
};

const TensorRule* find_rule(std::span<const TensorRule> rules, std::string_view ours) {
  const auto found =
      std::find_if(rules.begin(), rules.end(), [&](const TensorRule& rule) { return rule.ours == ours; });
  return found == rules.end() ? nullptr : &*found;
}

// Splits "layers.3.mlp.wo" into "layers.3." and "mlp.wo"; a name without a layer has an empty prefix.
std::pair<std::string_view, std::string_view> split_layer(std::string_view name) {
  if (!name.starts_with("layers.")) return {"", name};
  const std::size_t dot = name.find('.', 7);
  CHECK(dot != std::string_view::npos, "parameter {}", name);
  return {name.substr(0, dot + 1), name.substr(dot + 1)};
}

// ours [in..., out...] -> hub [out, in]; attention.out and delta.out are those with two inner dimensions on
// its input side.
Shape matrix_shape(std::string_view rule, const Shape& ours) {
  const std::size_t inputs = rule == "attention.out" || rule == "delta.out" ? 2 : 1;
  const auto middle = ours.begin() + static_cast<std::ptrdiff_t>(inputs);
  return {num_elements(Shape(middle, ours.end())), num_elements(Shape(ours.begin(), middle))};
}

// Copies one hub tensor's worth of elements, from [rows, columns] to its transpose, or as it is.
void move_elements(DType dtype, const std::byte* from, std::byte* to, std::int64_t rows, std::int64_t columns,
                   bool transposed) {
  if (!transposed) {
    const auto bytes = static_cast<std::size_t>(rows * columns) * size_of(dtype);
    if (bytes > 0) std::memcpy(to, from, bytes);
  } else {
    transpose(size_of(dtype), from, rows, columns, to, rows);
  }
}

// Types of a safetensors file that SafetensorsFile::read gives as f32 or bf16.
bool is_float_name(std::string_view dtype) {
  return dtype == "F32" || dtype == "BF16" || dtype == "F16" || dtype == "F64";
}

// True for tensors that models for images have beside their decoder.
bool is_of_another_part(const std::string& name) {
  constexpr std::string_view kParts[] = {"vision_model.", "multi_modal_projector.", "model.visual.",
                                         "visual.",       "vision_tower.",          "mm_projector."};
  return std::any_of(std::begin(kParts), std::end(kParts),
                     [&](std::string_view part) { return name.starts_with(part); });
}

constexpr std::string_view kOfPredictions = " (multi-token prediction)";

std::string list_of(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size() && i < 5; ++i) text += (i ? ", " : "") + names[i];
  if (names.size() > 5) text += fmt::format(" and {} more", names.size() - 5);
  return text;
}

}  // namespace

HubTensors hub_tensors(const ModelFamily& family, const std::string& our_name, const Shape& our_shape) {
  const auto [prefix, below] = split_layer(our_name);
  const TensorRule* rule = find_rule(family.tensors, below);
  if (rule == nullptr) rule = prefix.empty() ? find_rule(kTopRules, below) : find_rule(kLayerRules, below);
  CHECK(rule != nullptr, "parameter {}", our_name);
  const std::string hub = (prefix.empty() ? "" : "model." + std::string(prefix)) + std::string(rule->hub);
  HubTensors tensors;
  tensors.transposed = rule->form == TensorForm::matrix;
  const std::size_t expert = hub.find("{}");
  if (expert == std::string::npos) {
    tensors.names = {hub};
    tensors.shape = rule->form == TensorForm::matrix   ? matrix_shape(below, our_shape)
                    : rule->form == TensorForm::vector ? Shape{num_elements(our_shape)}
                    : rule->form == TensorForm::row    ? Shape{1, num_elements(our_shape)}
                    : rule->form == TensorForm::taps   ? Shape{our_shape[0] * our_shape[1], 1, our_shape[2]}
                                                       : our_shape;
    return tensors;
  }
  CHECK(our_shape.size() == 3, "{} has shape {}", our_name, to_string(our_shape));
  tensors.shape = {our_shape[2], our_shape[1]};
  for (std::int64_t e = 0; e < our_shape[0]; ++e) {
    tensors.names.push_back(hub.substr(0, expert) + std::to_string(e) + hub.substr(expert + 2));
  }
  return tensors;
}

Shape hub_shape(const ModelFamily& family, const std::string& our_name, const Shape& our_shape) {
  return hub_tensors(family, our_name, our_shape).shape;
}

Tensor to_ours(const HubTensors& tensors, std::span<const Tensor> hub, const Shape& our_shape) {
  CHECK(hub.size() == tensors.names.size() && !hub.empty(), "{} of {} tensors", hub.size(),
        tensors.names.size());
  const DType dtype = hub[0].dtype();
  CHECK(is_float(dtype), "hub tensor is {}", name_of(dtype));
  Tensor ours(dtype, our_shape);
  std::byte* to = ours.raw();
  for (const Tensor& tensor : hub) {
    CHECK(tensor.shape() == tensors.shape && tensor.dtype() == dtype, "{} {}, expected {}",
          name_of(tensor.dtype()), to_string(tensor.shape()), to_string(tensors.shape));
    const std::int64_t columns = tensors.transposed ? tensor.dim(1) : 1;
    CHECK(to + tensor.bytes() <= ours.raw() + ours.bytes(), "hub tensors exceed {}", to_string(our_shape));
    if (tensor.size() > 0) {
      move_elements(dtype, tensor.raw(), to, tensor.size() / columns, columns, tensors.transposed);
    }
    to += tensor.bytes();
  }
  CHECK(to == ours.raw() + ours.bytes(), "hub tensors do not fill {}", to_string(our_shape));
  return ours;
}

std::vector<Tensor> to_hub(const HubTensors& tensors, const Tensor& ours) {
  CHECK(is_float(ours.dtype()), "parameter is {}", name_of(ours.dtype()));
  std::vector<Tensor> hub;
  const std::byte* from = ours.raw();
  for (std::size_t i = 0; i < tensors.names.size(); ++i) {
    const Tensor& tensor = hub.emplace_back(ours.dtype(), tensors.shape);
    CHECK(from + tensor.bytes() <= ours.raw() + ours.bytes(), "hub tensors exceed {}",
          to_string(ours.shape()));
    const std::int64_t columns = tensors.transposed ? tensor.dim(0) : 1;  // ours is [in, out]
    if (tensor.size() > 0) {
      move_elements(ours.dtype(), from, tensor.raw(), tensor.size() / columns, columns, tensors.transposed);
    }
    from += tensor.bytes();
  }
  return hub;
}

Tensor load_from_hub(const HubWeights& folder, const ModelFamily& family, const std::string& our_name,
                     const Shape& our_shape) {
  const HubTensors tensors = hub_tensors(family, our_name, our_shape);
  std::vector<Tensor> parts;
  for (const std::string& name : tensors.names) {
    if (folder.shape(name) != tensors.shape) {
      fail_usage("[checkpoint] {}: tensor {} has shape {}, expected {} for {}", folder.path(), name,
                 to_string(folder.shape(name)), to_string(tensors.shape), our_name);
    }
    Tensor part = folder.read(name);
    if (!is_float(part.dtype()) || (!parts.empty() && part.dtype() != parts[0].dtype())) {
      fail_usage("[checkpoint] {}: tensor {} is {}, expected {}", folder.path(), name, name_of(part.dtype()),
                 parts.empty() ? "floating point" : name_of(parts[0].dtype()));
    }
    parts.push_back(std::move(part));
  }
  return to_ours(tensors, parts, our_shape);
}

std::optional<std::string> hub_left_out(const std::string& name, bool tied, std::int64_t num_layers) {
  if (name.ends_with("rotary_emb.inv_freq")) return name + " (stored rotary frequencies)";
  if (tied && name == "lm_head.weight") return name + " (a copy of the tied embeddings)";
  if (name.starts_with("mtp.")) return name + std::string(kOfPredictions);
  if (is_of_another_part(name)) return name + " (images)";
  constexpr std::string_view kLayers = "model.layers.";
  if (!name.starts_with(kLayers)) return {};
  std::int64_t layer = -1;
  const char* begin = name.data() + kLayers.size();
  const auto [end, status] = std::from_chars(begin, name.data() + name.size(), layer);
  if (status != std::errc() || *end != '.' || layer < num_layers) return {};
  const std::string_view below(end + 1);
  if (below == kPredictionEmbedding) return name + " (a copy of the embedding)";
  if (below == kPredictionHead) return name + " (a copy of the head)";
  return name + std::string(kOfPredictions);
}

std::vector<std::string> check_hub_tensors(const HubWeights& folder, const ModelFamily& family,
                                           const std::map<std::string, Shape>& our_parameters,
                                           std::int64_t num_layers) {
  std::set<std::string> known;
  std::vector<std::string> missing, misshaped, mistyped, surplus, notices;
  for (const auto& [our_name, our_shape] : our_parameters) {
    const HubTensors tensors = hub_tensors(family, our_name, our_shape);
    for (const std::string& name : tensors.names) {
      known.insert(name);
      if (!folder.contains(name)) {
        missing.push_back(name);
      } else if (folder.shape(name) != tensors.shape) {
        misshaped.push_back(fmt::format("{} {} (expected {})", name, to_string(folder.shape(name)),
                                        to_string(tensors.shape)));
      } else if (!is_float_name(folder.dtype(name))) {
        mistyped.push_back(fmt::format("{} {} (expected BF16, F32, F16, F64, or F8_E4M3 with {} beside it)",
                                       name, folder.dtype(name), block_scale_name(name)));
      } else if (const std::string& first = tensors.names[0];
                 folder.contains(first) &&
                 (folder.dtype(name) == "BF16") != (folder.dtype(first) == "BF16")) {
        mistyped.push_back(fmt::format("{} {} (expected {} as of {})", name, folder.dtype(name),
                                       folder.dtype(first), first));
      }
    }
  }
  const bool tied = !our_parameters.contains("head");
  std::int64_t of_other_parts = 0;
  std::vector<std::string> of_predictions;
  for (const std::string& name : folder.names()) {
    if (known.contains(name)) continue;
    if (is_of_another_part(name)) {
      ++of_other_parts;
      continue;
    }
    if (auto notice = hub_left_out(name, tied, num_layers)) {
      if (notice->ends_with(kOfPredictions))
        of_predictions.push_back(folder.stored_name(name));  // with all experts they are many
      else
        notices.push_back(*notice);
    } else if (num_elements(folder.shape(name)) == 0) {  // shared experts of a model that has none
      notices.push_back(name + " (empty)");
    } else {
      surplus.push_back(in_quotes(folder.stored_name(name)));
    }
  }
  if (!of_predictions.empty())
    notices.push_back(of_predictions[0] +
                      (of_predictions.size() == 1
                           ? std::string()
                           : fmt::format(" and {} more tensors", of_predictions.size() - 1)) +
                      std::string(kOfPredictions));
  if (of_other_parts > 0) notices.push_back(fmt::format("{} tensors of what sees images", of_other_parts));
  std::string problems;
  for (const auto& [what, names] : {std::pair{"missing", &missing},
                                    {"wrong shape", &misshaped},
                                    {"wrong type", &mistyped},
                                    {"surplus", &surplus}}) {
    if (!names->empty())
      problems += fmt::format("{}{}: {}", problems.empty() ? "" : "; ", what, list_of(*names));
  }
  if (!problems.empty()) {
    fail_usage("[checkpoint] {}: tensors do not fit the model; {}", folder.path(), problems);
  }
  return notices;
}

}  // namespace switchyard

#include "gguf/gguf_weights.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/json_file.h"

namespace switchyard {
namespace {

using nlohmann::json;

constexpr GgufName kTopNames[] = {
    {"token_embd.weight", "model.embed_tokens.weight"},
    {"output_norm.weight", "model.norm.weight"},
    {"output.weight", "lm_head.weight"},
};

// Names below "blk.<i>." and below "model.layers.<i>.".
constexpr GgufName kLayerNames[] = {
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
    {"attn_q_a.bias", "self_attn.q_a_proj.bias"},
    {"attn_kv_a_mqa.bias", "self_attn.kv_a_proj_with_mqa.bias"},
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
    {"nextn.eh_proj.weight", "eh_proj.weight"},  // of prediction layers
    {"nextn.enorm.weight", "enorm.weight"},
    {"nextn.hnorm.weight", "hnorm.weight"},
    {"nextn.shared_head_norm.weight", "shared_head.norm.weight"},
    {"nextn.embed_tokens.weight", "embed_tokens.weight"},
    {"nextn.shared_head_head.weight", "shared_head.head.weight"},
};

const GgufName* find(std::span<const GgufName> names, std::string_view gguf) {
  const auto found = std::ranges::find(names, gguf, &GgufName::gguf);
  return found == names.end() ? nullptr : &*found;
}

}  // namespace

GgufWeights::GgufWeights(GgufFile file, const json& config) : file_(std::move(file)) {
  const GgufArchitecture& architecture = architecture_of(file_);
  for (const auto& [tensor, entry] : file_.entries()) add(tensor, architecture, config);
}

void GgufWeights::add(const std::string& tensor, const GgufArchitecture& architecture, const json& config) {
  const GgufFile::Entry& entry = file_.at(tensor);
  const Part::Stored stored = architecture.norms_plus_one && tensor.ends_with("norm.weight")
                                  ? Part::Stored::plus_one
                                  : Part::Stored::as_is;
  Part part{.tensor = tensor, .second = {}, .shape = entry.shape, .stored = stored};
  if (const GgufName* top = find(kTopNames, tensor)) {
    parts_[std::string(top->hub)] = part;
    return;
  }
  if (tensor == "rope_freqs.weight") return;  // hub_config_of() has read it
  const std::size_t dot = tensor.starts_with("blk.") ? tensor.find('.', 4) : std::string::npos;
  if (dot == std::string::npos)
    fail_usage("[gguf] {}: tensor {} is not one of a model that is known here", path(), in_quotes(tensor));
  const std::string layer = tensor.substr(0, dot + 1), below = tensor.substr(dot + 1),
                    prefix = "model.layers." + layer.substr(4);
  const GgufExperts& experts = architecture.experts;
  const std::string of_experts = prefix + std::string(experts.begin);
  if (below == "ffn_gate_exps.weight") return add_experts(tensor, of_experts, experts.gate);
  if (below == "ffn_up_exps.weight") return add_experts(tensor, of_experts, experts.up);
  if (below == "ffn_down_exps.weight") return add_experts(tensor, of_experts, experts.down);
  if (below == "ffn_gate_up_exps.weight") return add_experts(tensor, of_experts, experts.gate, experts.up);
  if (below == "attn_k_b.weight")
    return add_latent_up_projection(layer, prefix + "self_attn.kv_b_proj.weight", config);
  if (below == "attn_v_b.weight" && file_.entries().contains(layer + "attn_k_b.weight")) return;  // with it
  if (config.contains("linear_num_key_heads") && add_delta_net(tensor, below, prefix, architecture, config))
    return;
  const GgufName* name = find(architecture.tensors, below);
  if (name == nullptr) name = find(kLayerNames, below);
  if (name == nullptr)
    fail_usage("[gguf] {}: tensor {} is not one of a {} model", path(), in_quotes(tensor), architecture.name);
  if (below == "ffn_gate_inp_shexp.weight" && entry.shape.size() == 1) part.shape = {1, entry.shape[0]};
  const bool of_queries = below.starts_with("attn_q."), of_keys = below.starts_with("attn_k.");
  if (architecture.alternating_halves && (of_queries || of_keys)) {
    part.form = Part::Form::permuted;
    const std::int64_t heads =
        config.at(of_queries ? "num_attention_heads" : "num_key_value_heads").get<std::int64_t>();
    if (heads == 0 || entry.shape[0] % (2 * heads) != 0)
      fail_usage("[gguf] {}: tensor {} has {} rows, expected a multiple of twice {} heads", path(),
                 in_quotes(tensor), entry.shape[0], heads);
    part.head = entry.shape[0] / heads;
  }
  parts_[prefix + std::string(name->hub)] = part;
}

// [experts, out, in] -> one [out, in] an expert, or two with half of the outputs each.
void GgufWeights::add_experts(const std::string& tensor, const std::string& name, std::string_view suffix,
                              std::string_view second) {
  const Shape& shape = file_.at(tensor).shape;
  if (shape.size() != 3)
    fail_usage("[gguf] {}: tensor {} is {}, expected [experts, out, in]", path(), in_quotes(tensor),
               to_string(shape));
  const std::int64_t outputs = second.empty() ? shape[1] : shape[1] / 2;
  if (!second.empty() && shape[1] % 2 != 0)
    fail_usage("[gguf] {}: tensor {} has {} outputs, expected as many gates as ups", path(),
               in_quotes(tensor), shape[1]);
  const auto add_one = [&](std::int64_t e, std::string_view end, std::int64_t first) {
    parts_[fmt::format("{}{}.{}", name, e, end)] = {
        .tensor = tensor, .second = {}, .first = e * shape[1] + first, .shape = {outputs, shape[2]}};
  };
  for (std::int64_t e = 0; e < shape[0]; ++e) {
    add_one(e, suffix, 0);
    if (!second.empty()) add_one(e, second, outputs);
  }
}

// attn_k_b [heads, kv_lora, nope] and attn_v_b [heads, v, kv_lora] -> kv_b_proj [heads
// · (nope + v), kv_lora].
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

std::string GgufWeights::stored_name(const std::string& name) const {
  return at(name).tensor;
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
  return part.form != Part::Form::kv_b && part.stored == Part::Stored::as_is &&
                 file_.at(part.tensor).type->name == "BF16"
             ? "BF16"
             : "F32";
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
  Shape shape = part.shape;
  shape[0] = end - begin;
  const Tensor rows = rows_of(part, begin, end, true).reshaped(shape);
  return dtype(name) == "BF16" ? rows.cast(DType::bf16) : rows;
}

std::int64_t GgufWeights::Turns::there(std::int64_t i) const {
  if (run == 0) return i;
  const std::int64_t head = i / run;
  return (head % of_group * groups + head / of_group) * run + i % run;
}

// Row j of a permuted head is row 2 j of the head there, row j + head / 2 is row 2 j + 1.
std::int64_t GgufWeights::permuted_there(std::int64_t row, std::int64_t head) {
  const std::int64_t within = row % head, half = head / 2;
  return row - within + (within < half ? 2 * within : 2 * (within - half) + 1);
}

// The tensor's row that is a weight's row.
std::int64_t GgufWeights::row_there(const Part& part, std::int64_t row) {
  if (part.form == Part::Form::rows) return part.first + row;
  if (part.form == Part::Form::runs)
    return part.first + part.turns.there(row / part.head) * part.stride + row % part.head;
  return permuted_there(row, part.head);
}

// A row of the file's values, made the weight's.
void GgufWeights::turn_back(const Part& part, std::span<float> row) {
  if (part.columns.run > 0 || part.form == Part::Form::permuted) {
    const std::vector<float> there(row.begin(), row.end());
    for (std::size_t i = 0; i < row.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      row[i] = there[static_cast<std::size_t>(
          part.form == Part::Form::permuted ? permuted_there(at, part.head) : part.columns.there(at))];
    }
  }
  if (part.stored == Part::Stored::as_is) return;
  for (float& value : row)
    value = part.stored == Part::Stored::plus_one ? value - 1
                                                  : static_cast<float>(std::log(-static_cast<double>(value)));
}

std::optional<DType> GgufWeights::packed_dtype(const std::string& name) const {
  const Part& part = at(name);
  if (part.form == Part::Form::kv_b || part.shape.size() != 2) return std::nullopt;
  const std::optional<DType> packed = packed_dtype_of(*file_.at(part.tensor).type);
  if (!packed || part.shape[0] % kBlockOutputs != 0 || part.shape[1] % block_inputs(*packed) != 0 ||
      part.columns.run % block_inputs(*packed) != 0)
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
      file_.check_scales(part.tensor, there, there + 1);
      rows[i] = file_.row_bytes(part.tensor, there, there + 1).data();
    }
    for (std::int64_t g = 0; g < groups; ++g) {
      std::byte* const block =
          blocks.raw() + static_cast<std::size_t>(g / of_block * columns + column) * size_of(*packed);
      for (std::int64_t i = 0; i < kBlockOutputs; ++i) {
        const std::int64_t there = part.columns.there(g * kGroupInputs) / kGroupInputs;
        const std::optional<PackedGroup> group =
            packed_group_of(type, rows[i] + there / of_stored * type.bytes, there % of_stored);
        if (!group)
          fail_usage(
              "[gguf] {}: tensor {} has an exponent of 255, which {} cannot hold: expected "
              "weight_format=dense",
              path(), in_quotes(part.tensor), name_of(*packed));
        write_group(*packed, *group, block, i, g % of_block);
      }
    }
  }
  if (part.form == Part::Form::runs) {
    const Shape& whole = file_.at(part.tensor).shape;
    file_.release_rows(part.tensor, 0, num_elements(whole) / whole.back());
    return blocks;
  }
  const std::int64_t first = part.form == Part::Form::rows ? part.first : 0;
  file_.release_rows(part.tensor, first, first + part.shape[0]);
  return blocks;
}

Tensor GgufWeights::rows_of(const Part& part, std::int64_t begin, std::int64_t end, bool release) const {
  const auto take = [&](const std::string& tensor, std::int64_t from, std::int64_t to) {
    file_.check_scales(tensor, from, to);
    Tensor rows = file_.read_rows(tensor, from, to);
    if (release) file_.release_rows(tensor, from, to);
    return rows;
  };
  const std::int64_t columns = part.width();
  if (part.form == Part::Form::rows || part.shape.size() == 1) {
    const Tensor rows = take(part.tensor, part.first + begin, part.first + end);
    for (std::int64_t row = 0; row < end - begin; ++row)
      turn_back(part, rows.span<float>().subspan(static_cast<std::size_t>(row * columns),
                                                 static_cast<std::size_t>(columns)));
    return rows;
  }
  Tensor out(DType::f32, {end - begin, columns});
  float* to = out.data<float>();
  if (part.form == Part::Form::permuted || part.form == Part::Form::runs) {
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

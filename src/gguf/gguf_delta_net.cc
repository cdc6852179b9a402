// Gated delta nets, and attention with an output gate, with llama.cpp's names and order of weights
// (docs/design/gguf.md).
#include "core/error.h"
#include "core/json_file.h"
#include "gguf/architectures.h"
#include "gguf/gguf_weights.h"

namespace switchyard {

// Maps a tensor that other families lack, or whose name they use for another one. False: any other tensor.
bool GgufWeights::add_delta_net(const std::string& tensor, const std::string& below,
                                const std::string& prefix, const GgufArchitecture& architecture,
                                const nlohmann::json& config) {
  using Form = Part::Form;
  using Stored = Part::Stored;
  const auto number = [&](const char* key) { return config.at(key).get<std::int64_t>(); };
  const std::int64_t width = number("hidden_size"), groups = number("linear_num_key_heads"),
                     heads = number("linear_num_value_heads"), key_dim = number("linear_key_head_dim"),
                     value_dim = number("linear_value_head_dim"), taps = number("linear_conv_kernel_dim");
  if (groups == 0 || heads % groups != 0)
    fail_usage("[gguf] {}: {} key heads and {} value heads, expected as many or a multiple", path(), groups,
               heads);
  const std::int64_t of_group = heads / groups, keys = groups * key_dim, values = heads * value_dim;
  const bool in_turns = architecture.heads_in_turns;
  const auto turns = [&](std::int64_t run) { return in_turns ? Turns{run, groups, of_group} : Turns{}; };
  const auto add = [&](const char* name, Part part) {
    part.tensor = tensor;
    parts_[prefix + name] = std::move(part);
  };
  const auto expect = [&](const Shape& shape) {
    if (file_.at(tensor).shape != shape)
      fail_usage("[gguf] {}: tensor {} is {}, expected {}", path(), in_quotes(tensor),
                 to_string(file_.at(tensor).shape), to_string(shape));
  };
  // `count` rows from `first` on, those of value heads `run` each.
  const auto rows = [&](std::int64_t first, std::int64_t count, std::int64_t run) {
    Part part{.tensor = {}, .second = {}, .first = first, .shape = {count, width}};
    if (run == 0 || !in_turns) return part;
    part.form = Form::runs;
    part.head = part.stride = run;
    part.turns = turns(1);
    return part;
  };
  // `run` rows in each `stride`.
  const auto runs = [&](std::int64_t first, std::int64_t count, std::int64_t run, std::int64_t stride) {
    return Part{.form = Form::runs,
                .tensor = {},
                .second = {},
                .first = first,
                .head = run,
                .shape = {count * run, width},
                .stride = stride};
  };
  const auto taps_of = [&](Part part) {
    part.shape = {part.shape[0], 1, taps};
    return part;
  };
  const auto vector = [&](std::int64_t size, Stored stored, Turns order) {
    return Part{.tensor = {}, .second = {}, .shape = {size}, .columns = order, .stored = stored};
  };
  if (below == "attn_q.weight") {
    const std::int64_t attention_heads = number("num_attention_heads"), head = number("head_dim");
    expect({2 * attention_heads * head, width});
    add("self_attn.query_proj.weight", runs(0, attention_heads, head, 2 * head));
    add("self_attn.gate_proj.weight", runs(head, attention_heads, head, 2 * head));
  } else if (below == "attn_qkv.weight") {
    expect({2 * keys + values, width});
    add("linear_attn.q_proj.weight", rows(0, keys, 0));
    add("linear_attn.k_proj.weight", rows(keys, keys, 0));
    add("linear_attn.v_proj.weight", rows(2 * keys, values, value_dim));
  } else if (below == "attn_gate.weight") {
    expect({values, width});
    add("linear_attn.in_proj_z.weight", rows(0, values, value_dim));
  } else if (below == "ssm_in.weight") {  // of qwen3next files from before 2026
    const std::int64_t of_key_head = of_group * value_dim, stride = 2 * key_dim + 2 * of_key_head;
    expect({groups * stride, width});
    add("linear_attn.q_proj.weight", runs(0, groups, key_dim, stride));
    add("linear_attn.k_proj.weight", runs(key_dim, groups, key_dim, stride));
    add("linear_attn.v_proj.weight", runs(2 * key_dim, groups, of_key_head, stride));
    add("linear_attn.in_proj_z.weight", runs(2 * key_dim + of_key_head, groups, of_key_head, stride));
  } else if (below == "ssm_ba.weight") {
    expect({2 * heads, width});
    add("linear_attn.in_proj_b.weight", runs(0, groups, of_group, 2 * of_group));
    add("linear_attn.in_proj_a.weight", runs(of_group, groups, of_group, 2 * of_group));
  } else if (below == "ssm_beta.weight" || below == "ssm_alpha.weight") {
    expect({heads, width});
    add(below == "ssm_beta.weight" ? "linear_attn.in_proj_b.weight" : "linear_attn.in_proj_a.weight",
        rows(0, heads, 1));
  } else if (below == "ssm_conv1d.weight") {
    expect({2 * keys + values, taps});
    add("linear_attn.q_conv1d.weight", taps_of(rows(0, keys, 0)));
    add("linear_attn.k_conv1d.weight", taps_of(rows(keys, keys, 0)));
    add("linear_attn.v_conv1d.weight", taps_of(rows(2 * keys, values, value_dim)));
  } else if (below == "ssm_a") {
    expect({heads});
    add("linear_attn.A_log", vector(heads, Stored::minus_exponential, turns(1)));
  } else if (below == "ssm_dt.bias") {
    expect({heads});
    add("linear_attn.dt_bias", vector(heads, Stored::as_is, turns(1)));
  } else if (below == "ssm_norm.weight") {  // the one norm that multiplies by its weight
    expect({value_dim});
    add("linear_attn.norm.weight", vector(value_dim, Stored::as_is, {}));
  } else if (below == "ssm_out.weight") {
    expect({width, values});
    add("linear_attn.out_proj.weight",
        {.tensor = {}, .second = {}, .shape = {width, values}, .columns = turns(value_dim)});
  } else {
    return false;
  }
  return true;
}

}  // namespace switchyard

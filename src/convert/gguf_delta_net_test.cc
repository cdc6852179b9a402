// Tests GGUF files of gated delta nets, written here as llama.cpp's converter orders and changes tensors.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>

#include "checkpoint/safetensors.h"
#include "convert/gguf_testing.h"
#include "convert/logits.h"
#include "core/error.h"
#include "core/json_file.h"
#include "core/testing.h"
#include "gguf/gguf_weights.h"
#include "kernels/packed/packed_weights.h"
#include "models/families/hub_source.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

Tensor stacked(const std::vector<Tensor>& parts) {
  std::int64_t size = 0;
  for (const Tensor& part : parts) size += part.size();
  const Tensor all(DType::f32, {size});
  std::byte* to = all.raw();
  for (const Tensor& part : parts) {
    std::memcpy(to, part.raw(), part.bytes());
    to += part.bytes();
  }
  return all;
}

// Heads of `run` values, in `groups` groups: the first of each group, the second of each, ...; the same in
// each of `rows` rows.
Tensor in_turns(const Tensor& x, std::int64_t rows, std::int64_t groups, std::int64_t run) {
  const Tensor turned(DType::f32, x.shape());
  const std::int64_t width = x.size() / rows, of_group = width / run / groups;
  float* to = turned.data<float>();
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t j = 0; j < of_group; ++j)
      for (std::int64_t g = 0; g < groups; ++g)
        for (std::int64_t i = 0; i < run; ++i)
          *to++ = x.data<float>()[row * width + (g * of_group + j) * run + i];
  return turned;
}

Tensor changed(const Tensor& x, const std::function<float(float)>& change) {
  const Tensor result(DType::f32, x.shape());
  for (std::int64_t i = 0; i < x.size(); ++i) result.data<float>()[i] = change(x.data<float>()[i]);
  return result;
}

const std::string kFolder = std::string(kSourceFolder) + "/tests/golden/hf/qwen3next-tiny";

// How a test's file differs from what llama.cpp's converter writes today.
struct Unusual {
  bool one_gate_and_up = false, old_projection = false, listed_layers = false, mixed_up = false;
};

// The model of the folder as qwen3next, or as qwen35moe, which computes the same.
std::string written(bool in_35, const Unusual& unusual = {}) {
  const HubSource source = open_hub_source(kFolder);
  const json& hub = source.config;
  const auto number = [&](const char* key) { return hub.at(key).get<std::int64_t>(); };
  const std::string arch = in_35 ? "qwen35moe" : "qwen3next";
  const std::int64_t width = number("hidden_size"), groups = number("linear_num_key_heads"),
                     heads = number("linear_num_value_heads"), of_key = number("linear_key_head_dim"),
                     of_value = number("linear_value_head_dim"), taps = number("linear_conv_kernel_dim"),
                     layers = number("num_hidden_layers"), experts = number("num_experts"),
                     head = number("head_dim"), keys = groups * of_key, values = heads * of_value;
  GgufWriter file;
  file.text("general.architecture", arch);
  const auto integer = [&](const char* key, std::int64_t value) {
    file.integer(arch + "." + key, static_cast<std::uint32_t>(value));
  };
  integer("block_count", layers);
  integer("context_length", number("max_position_embeddings"));
  integer("embedding_length", width);
  integer("feed_forward_length", number("intermediate_size"));
  integer("attention.head_count", number("num_attention_heads"));
  integer("attention.head_count_kv", number("num_key_value_heads"));
  integer("attention.key_length", head);
  integer("rope.dimension_count", head / 4);
  integer("expert_count", experts);
  integer("expert_used_count", number("num_experts_per_tok"));
  integer("expert_feed_forward_length", number("moe_intermediate_size"));
  integer("expert_shared_feed_forward_length", number("shared_expert_intermediate_size"));
  integer("ssm.conv_kernel", taps);
  integer("ssm.state_size", of_key);
  integer("ssm.group_count", groups);
  integer("ssm.time_step_rank", heads);
  integer("ssm.inner_size", values);
  if (unusual.listed_layers)
    file.flags(arch + ".attention.recurrent_layers", {true, true, true, false});
  else
    integer("full_attention_interval", 4);
  file.number(arch + ".rope.freq_base", 1e7f);
  file.number(arch + ".attention.layer_norm_rms_epsilon", 1e-6f);

  const auto of = [&](const std::string& name) { return source.weights->read(name); };
  const auto plus_one = [&](const std::string& name) {
    return changed(of(name), [](float x) { return x + 1; });
  };
  // Rows of value heads, or numbers of them.
  const auto turned = [&](const Tensor& x, std::int64_t run) {
    return in_35 ? in_turns(x, 1, groups, run) : x;
  };
  file.tensor("token_embd.weight", {number("vocab_size"), width}, of("model.embed_tokens.weight"));
  file.tensor("output_norm.weight", {width}, plus_one("model.norm.weight"));
  file.tensor("output.weight", {number("vocab_size"), width}, of("lm_head.weight"));
  for (std::int64_t i = 0; i < layers; ++i) {
    const std::string there = fmt::format("blk.{}.", i), here = fmt::format("model.layers.{}.", i);
    const auto add = [&](const std::string& name, const Shape& shape, const Tensor& x) {
      file.tensor(there + name, shape, x);
    };
    add("attn_norm.weight", {width}, plus_one(here + "input_layernorm.weight"));
    add("post_attention_norm.weight", {width}, plus_one(here + "post_attention_layernorm.weight"));
    if (i + 1 < layers) {
      const std::string delta = here + "linear_attn.";
      const Tensor q = of(delta + "q_proj.weight"), k = of(delta + "k_proj.weight"),
                   v = of(delta + "v_proj.weight"), z = of(delta + "in_proj_z.weight"),
                   b = of(delta + "in_proj_b.weight"), a = of(delta + "in_proj_a.weight");
      const std::int64_t of_group = heads / groups, rows = of_group * of_value;
      if (unusual.old_projection) {
        std::vector<Tensor> parts;
        for (std::int64_t g = 0; g < groups; ++g)
          for (const auto& [x, count] : {std::pair{q, of_key}, {k, of_key}, {v, rows}, {z, rows}})
            parts.push_back(x.slice_rows(g * count, (g + 1) * count));
        add("ssm_in.weight", {2 * keys + 2 * values, width}, stacked(parts));
      } else {
        const Tensor qkv = stacked({q, k, turned(v, of_value * width)});
        if (unusual.mixed_up)
          add("attn_qkv.weight", {width, 2 * keys + values}, qkv);
        else
          add("attn_qkv.weight", {2 * keys + values, width}, qkv);
        add("attn_gate.weight", {values, width}, turned(z, of_value * width));
      }
      if (in_35) {
        add("ssm_beta.weight", {heads, width}, turned(b, width));
        add("ssm_alpha.weight", {heads, width}, turned(a, width));
      } else {
        std::vector<Tensor> parts;
        for (std::int64_t g = 0; g < groups; ++g)
          for (const Tensor& x : {b, a}) parts.push_back(x.slice_rows(g * of_group, (g + 1) * of_group));
        add("ssm_ba.weight", {2 * heads, width}, stacked(parts));
      }
      add("ssm_conv1d.weight", {2 * keys + values, taps},
          stacked({of(delta + "q_conv1d.weight"), of(delta + "k_conv1d.weight"),
                   turned(of(delta + "v_conv1d.weight"), of_value * taps)}));
      add("ssm_a", {heads}, turned(changed(of(delta + "A_log"), [](float x) { return -std::exp(x); }), 1));
      add("ssm_dt.bias", {heads}, turned(of(delta + "dt_bias"), 1));
      add("ssm_norm.weight", {of_value}, of(delta + "norm.weight"));
      const Tensor out = of(delta + "out_proj.weight");
      add("ssm_out.weight", {width, values}, in_35 ? in_turns(out, width, groups, of_value) : out);
    } else {
      const std::string attention = here + "self_attn.";
      const Tensor query = of(attention + "query_proj.weight"), gate = of(attention + "gate_proj.weight");
      std::vector<Tensor> parts;
      for (std::int64_t h = 0; h < number("num_attention_heads"); ++h)
        for (const Tensor& x : {query, gate}) parts.push_back(x.slice_rows(h * head, (h + 1) * head));
      add("attn_q.weight", {2 * query.dim(0), width}, stacked(parts));
      for (const auto& [name, ours] : {std::pair{"attn_k.weight", "k_proj.weight"},
                                       {"attn_v.weight", "v_proj.weight"},
                                       {"attn_output.weight", "o_proj.weight"}}) {
        const Tensor x = of(attention + ours);
        add(name, x.shape(), x);
      }
      add("attn_q_norm.weight", {head}, plus_one(attention + "q_norm.weight"));
      add("attn_k_norm.weight", {head}, plus_one(attention + "k_norm.weight"));
    }
    const std::string mlp = here + "mlp.";
    const Tensor router = of(mlp + "gate.weight");
    add("ffn_gate_inp.weight", router.shape(), router);
    add("ffn_gate_inp_shexp.weight", in_35 ? Shape{1, width} : Shape{width},
        of(mlp + "shared_expert_gate.weight"));
    for (const char* which : {"gate", "up", "down"}) {
      const Tensor x = of(fmt::format("{}shared_expert.{}_proj.weight", mlp, which));
      add(fmt::format("ffn_{}_shexp.weight", which), x.shape(), x);
    }
    const auto experts_of = [&](const char* name, std::vector<const char*> which) {
      std::vector<Tensor> all;
      for (std::int64_t e = 0; e < experts; ++e)
        for (const char* one : which)
          all.push_back(of(fmt::format("{}experts.{}.{}_proj.weight", mlp, e, one)));
      add(name, {experts, std::ssize(which) * all[0].dim(0), all[0].dim(1)}, stacked(all));
    };
    if (unusual.one_gate_and_up) {
      experts_of("ffn_gate_up_exps.weight", {"gate", "up"});
    } else {
      experts_of("ffn_gate_exps.weight", {"gate"});
      experts_of("ffn_up_exps.weight", {"up"});
    }
    experts_of("ffn_down_exps.weight", {"down"});
  }
  return file.bytes();
}

class GgufDeltaNet : public testing::Test {
 protected:
  GgufDeltaNet() {
    std::string pattern = (fs::temp_directory_path() / "switchyard_gguf_XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
  }
  ~GgufDeltaNet() override {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }
  std::string stored(const std::string& bytes) {
    const std::string path = (folder_ / "m.gguf").string();
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  fs::path folder_;
};

TEST_F(GgufDeltaNet, HasTheLogitsOfTheSameFolder) {
  const Tensor tokens = SafetensorsFile::open(kFolder + "/io.safetensors").read("input_ids");
  const Tensor row = tokens.reshaped({1, tokens.size()}), want = stored_logits_of(kFolder, row);
  for (const auto& [in_35, unusual] : {std::pair{false, Unusual{}},
                                       {true, Unusual{}},
                                       {true, Unusual{.one_gate_and_up = true, .listed_layers = true}},
                                       {false, Unusual{.old_projection = true}}}) {
    SCOPED_TRACE(fmt::format("{} {} {}", in_35, unusual.one_gate_and_up, unusual.old_projection));
    const Tensor found = stored_logits_of(stored(written(in_35, unusual)), row);
    ASSERT_EQ(found.size(), want.size());
    double largest = 0, difference = 0;
    for (std::int64_t i = 0; i < want.size(); ++i) {
      const double one = want.data<float>()[i];
      largest = std::max(largest, std::abs(one));
      difference = std::max(difference, std::abs(found.data<float>()[i] - one));
    }
    EXPECT_GT(largest, 0.1);
    EXPECT_LE(difference, 1e-5 * largest);  // A_log is the logarithm of a rounded exponential
  }
}

// All but A_log comes back as it was; norms up to the rounding of 1 + weight.
TEST_F(GgufDeltaNet, HasTheWeightsOfTheSameFolder) {
  const HubSource folder = open_hub_source(kFolder);
  for (const bool in_35 : {false, true}) {
    const HubSource file = open_hub_source(stored(written(in_35)));
    EXPECT_EQ(file.config.at("model_type"), in_35 ? "qwen3_5_moe_text" : "qwen3_next");
    EXPECT_EQ(file.config.at("layer_types"), folder.config.at("layer_types"));
    EXPECT_EQ(file.config.at("rope_parameters").at("partial_rotary_factor"), 0.25);
    ASSERT_EQ(file.weights->names(), folder.weights->names());
    for (const std::string& name : folder.weights->names()) {
      const Tensor want = folder.weights->read(name), found = file.weights->read(name);
      ASSERT_EQ(want.shape(), found.shape()) << name;
      const bool computed = name.ends_with("A_log") ||
                            (name.ends_with("norm.weight") && !name.ends_with("linear_attn.norm.weight"));
      for (std::int64_t i = 0; i < want.size(); ++i) {
        const float w = want.data<float>()[i], f = found.data<float>()[i];
        if (computed)
          ASSERT_NEAR(f, w, 5e-7f) << name << " " << i;
        else
          ASSERT_EQ(f, w) << name << " " << i;
      }
    }
  }
}

TEST_F(GgufDeltaNet, RefusesATensorOfAnotherShapeInALine) {
  try {
    open_hub_source(stored(written(false, {.mixed_up = true})));
    ADD_FAILURE() << "opened";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::usage);
    const std::string text = error.what();
    EXPECT_NE(text.find("tensor \"blk.0.attn_qkv.weight\" is ["), std::string::npos) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
  }
}

// Where heads of 32 values stand in turns, blocks do too.
TEST_F(GgufDeltaNet, KeepsBlocksOfHeadsInTurns) {
  constexpr std::int64_t kWidth = 64, kGroups = 2, kHeads = 4, kHead = 32;
  const json config{
      {"model_type", "qwen3_5_moe_text"}, {"hidden_size", kWidth},        {"linear_num_key_heads", kGroups},
      {"linear_num_value_heads", kHeads}, {"linear_key_head_dim", kHead}, {"linear_value_head_dim", kHead},
      {"linear_conv_kernel_dim", 4},      {"num_attention_heads", 2},     {"head_dim", kHead}};
  GgufWriter file;
  file.text("general.architecture", "qwen35moe");
  file.random_blocks("blk.0.attn_qkv.weight", {(2 * kGroups + kHeads) * kHead, kWidth});
  file.random_blocks("blk.0.attn_gate.weight", {kHeads * kHead, kWidth});
  file.random_blocks("blk.0.ssm_out.weight", {kWidth, kHeads * kHead});
  file.random_blocks("blk.1.attn_q.weight", {4 * kHead, kWidth});
  const GgufWeights weights(GgufFile::open(stored(file.bytes())), config);
  int compared = 0;
  for (const std::string& name : weights.names()) {
    SCOPED_TRACE(name);
    ASSERT_EQ(weights.packed_dtype(name), DType::packed_int8);
    const Tensor blocks = weights.take_blocks(name), want = weights.read(name);
    ThreadPool pool(1);
    const Tensor values(DType::f32, unpacked_shape(DType::packed_int8, blocks.shape()));
    unpack_weights(pool, {blocks.view(), values.view()});
    ASSERT_EQ(values.shape(), (Shape{want.dim(1), want.dim(0)}));
    for (std::int64_t o = 0; o < want.dim(0); ++o)
      for (std::int64_t i = 0; i < want.dim(1); ++i, ++compared)
        ASSERT_EQ(values.data<float>()[i * want.dim(0) + o], want.data<float>()[o * want.dim(1) + i]);
  }
  EXPECT_EQ(compared, (8 + 4 + 4 + 4) * kHead * kWidth);
}

}  // namespace
}  // namespace switchyard

// Tests Qwen2 in a GGUF file, written here as llama.cpp's converter does: all tensors unchanged, with biases.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "checkpoint/safetensors.h"
#include "convert/gguf_testing.h"
#include "convert/logits.h"
#include "core/json_file.h"
#include "core/testing.h"
#include "models/families/hub_source.h"

namespace switchyard {
namespace {

std::string gguf_of_qwen2(const std::string& folder) {
  const HubSource source = open_hub_source(folder);
  const auto number = [&](const char* key) { return source.config.at(key).get<std::uint32_t>(); };
  GgufWriter file;
  file.text("general.architecture", "qwen2");
  for (const auto& [theirs, ours] : {std::pair{"block_count", "num_hidden_layers"},
                                     {"context_length", "max_position_embeddings"},
                                     {"embedding_length", "hidden_size"},
                                     {"feed_forward_length", "intermediate_size"},
                                     {"attention.head_count", "num_attention_heads"},
                                     {"attention.head_count_kv", "num_key_value_heads"}})
    file.integer(std::string("qwen2.") + theirs, number(ours));
  file.number("qwen2.rope.freq_base", 1e6f);
  file.number("qwen2.attention.layer_norm_rms_epsilon", 1e-6f);
  const auto add = [&](const std::string& theirs, const std::string& ours) {
    const Tensor x = source.weights->read(ours);
    file.tensor(theirs, x.shape(), x);
  };
  add("token_embd.weight", "model.embed_tokens.weight");
  add("output_norm.weight", "model.norm.weight");
  add("output.weight", "lm_head.weight");
  for (std::uint32_t i = 0; i < number("num_hidden_layers"); ++i) {
    const std::string there = fmt::format("blk.{}.", i), here = fmt::format("model.layers.{}.", i);
    add(there + "attn_norm.weight", here + "input_layernorm.weight");
    add(there + "ffn_norm.weight", here + "post_attention_layernorm.weight");
    add(there + "attn_output.weight", here + "self_attn.o_proj.weight");
    for (const std::string part : {"q", "k", "v"}) {
      add(there + "attn_" + part + ".weight", here + "self_attn." + part + "_proj.weight");
      add(there + "attn_" + part + ".bias", here + "self_attn." + part + "_proj.bias");
    }
    for (const std::string part : {"gate", "up", "down"})
      add(there + "ffn_" + part + ".weight", here + "mlp." + part + "_proj.weight");
  }
  return file.bytes();
}

TEST(GgufQwen2, HasTheLogitsOfTheSameFolder) {
  const std::string folder = std::string(kSourceFolder) + "/tests/golden/hf/qwen2-tiny";
  const auto path = std::filesystem::temp_directory_path() / fmt::format("qwen2_{}.gguf", ::getpid());
  std::ofstream(path, std::ios::binary) << gguf_of_qwen2(folder);
  const Tensor tokens = SafetensorsFile::open(folder + "/io.safetensors").read("input_ids");
  const Tensor row = tokens.reshaped({1, tokens.size()});
  const Tensor want = stored_logits_of(folder, row), found = stored_logits_of(path.string(), row);
  ASSERT_EQ(found.size(), want.size());
  EXPECT_EQ(std::memcmp(found.raw(), want.raw(), want.bytes()), 0);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace switchyard

// Tests the parts of conversion and inspection alone; the commands are in tests/cli/convert_test.cc.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>

#include "checkpoint/safetensors.h"
#include "convert/fold.h"
#include "convert/hub_export.h"
#include "convert/hub_form.h"
#include "convert/stored_names.h"
#include "convert/table.h"
#include "convert/tensor_source.h"
#include "convert/values.h"
#include "core/error.h"
#include "core/testing.h"
#include "models/families/hub_tensors.h"
#include "models/same_model.h"

namespace switchyard {
namespace {

using nlohmann::json;

template <typename T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

TEST(Values, Statistics) {
  const float nan = std::nanf(""), infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> values{1, 2, 3, nan, -infinity, 6};
  const Statistics s = statistics_of("F32", bytes_of(values));
  EXPECT_EQ(s.finite, 4);
  EXPECT_EQ(s.non_finite, 2);
  EXPECT_EQ(s.minimum, 1);
  EXPECT_EQ(s.maximum, 6);
  EXPECT_DOUBLE_EQ(s.mean, 3);
  EXPECT_DOUBLE_EQ(s.deviation(), std::sqrt((4 + 1 + 0 + 9) / 4.0));
  EXPECT_EQ(statistics_of("F32", {}).finite, 0);
}

TEST(Values, StatisticsOfManyAreThoseOfTheirParts) {
  std::vector<float> values(10000);
  double sum = 0, squares = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = 1000 + static_cast<float>(i % 97) / 8;
    sum += values[i];
  }
  const double mean = sum / 10000;
  for (float v : values) squares += (v - mean) * (v - mean);
  const Statistics all = statistics_of("F32", bytes_of(values));
  EXPECT_NEAR(all.mean, mean, 1e-9);
  EXPECT_NEAR(all.deviation(), std::sqrt(squares / 10000), 1e-9);
}

TEST(Values, EveryTypeIsRead) {
  const auto one = [](const std::string& dtype, const auto& value) {
    return statistics_of(dtype, std::as_bytes(std::span(&value, 1))).maximum;
  };
  EXPECT_EQ(one("F64", -2.5), -2.5);
  EXPECT_EQ(one("BF16", std::uint16_t{0xc040}), -3);
  EXPECT_EQ(one("F16", std::uint16_t{0x3c01}), 1 + 0x1p-10);
  EXPECT_EQ(one("F16", std::uint16_t{0x8001}), -0x1p-24);
  EXPECT_EQ(one("F8_E4M3", std::uint8_t{0x7e}), 448);
  EXPECT_EQ(one("F8_E5M2", std::uint8_t{0x01}), 0x1p-16);
  EXPECT_EQ(one("I8", std::int8_t{-7}), -7);
  EXPECT_EQ(one("I64", std::int64_t{-5'000'000'000}), -5e9);
  EXPECT_EQ(one("U16", std::uint16_t{65535}), 65535);
  const std::uint8_t not_a_number = 0x7f;
  EXPECT_EQ(statistics_of("F8_E4M3", std::as_bytes(std::span(&not_a_number, 1))).non_finite, 1);
  EXPECT_FALSE(is_numeric_dtype("F4"));
}

TEST(Values, Differences) {
  const float nan = std::nanf("");
  const std::vector<float> a{1, 2, nan, 0, -4}, b{1, 2.5f, nan, -0.0f, -4};
  const Difference d = difference_of("F32", bytes_of(a), "F32", bytes_of(b));
  EXPECT_EQ(d.differing, 1);
  EXPECT_EQ(d.elements, 5);
  EXPECT_EQ(d.max_abs, 0.5);
  EXPECT_EQ(d.max_rel, 0.125);
  const std::vector<float> broken{1, 2, 3, 0, -4};
  EXPECT_TRUE(std::isinf(difference_of("F32", bytes_of(a), "F32", bytes_of(broken)).max_abs));
  const std::vector<std::uint16_t> low{0x3f80, 0x4000};
  const std::vector<float> high{1, 2};
  EXPECT_EQ(difference_of("BF16", bytes_of(low), "F32", bytes_of(high)).differing, 0);
  // 1 + 2^-8 is a tie, which goes to the even 1; the next number up does not.
  const std::vector<float> near{1 + 0x1p-8f, 2}, apart{1 + 0x1.8p-8f, 2};
  const Difference rounded = difference_of("BF16", bytes_of(low), "F32", bytes_of(near));
  EXPECT_EQ(rounded.differing, 1);
  EXPECT_EQ(rounded.differing_in_bf16, 0);
  EXPECT_EQ(difference_of("BF16", bytes_of(low), "F32", bytes_of(apart)).differing_in_bf16, 1);
}

TEST(Fold, NumbersBecomeRanges) {
  std::vector<std::string> names{"embed"};
  for (int layer : {0, 1, 2, 4}) {
    for (int expert = 0; expert < 2; ++expert)
      names.push_back("layers." + std::to_string(layer) + ".experts." + std::to_string(expert) + ".w1");
  }
  const auto folded = fold_names(names, std::vector<std::string>(names.size(), "F32[2]"));
  ASSERT_EQ(folded.size(), 2u);
  EXPECT_EQ(folded[0].name, "embed");
  EXPECT_EQ(folded[1].name, "layers.{0-2,4}.experts.{0-1}.w1");
  EXPECT_EQ(folded[1].members.size(), 8u);
}

TEST(Fold, WhatIsMissingShows) {
  const std::vector<std::string> names{"l.0.e.0", "l.0.e.1", "l.1.e.0", "l.2.e.0", "l.2.e.1"};
  std::vector<std::string> folded;
  for (const auto& f : fold_names(names, std::vector<std::string>(5))) folded.push_back(f.name);
  EXPECT_EQ(folded, (std::vector<std::string>{"l.0.e.{0-1}", "l.1.e.0", "l.2.e.{0-1}"}));
  EXPECT_EQ(fold_names({"l.0", "l.1"}, {"F32", "BF16"}).size(), 2u);
}

TEST(NaturalOrder, NumbersCountAsNumbers) {
  const NaturalOrder less;
  EXPECT_TRUE(less("layers.2.w", "layers.10.w"));
  EXPECT_FALSE(less("layers.10.w", "layers.2.w"));
  EXPECT_TRUE(less("a", "a.b"));
  EXPECT_TRUE(less("a.1", "a.01") != less("a.01", "a.1"));
  EXPECT_FALSE(less("a.1", "a.1"));
}

TEST(Tables, ColumnsAlign) {
  Table table({"name", ">size"});
  table.add({"a", "1,000"});
  table.add({"long", "7"});
  EXPECT_EQ(table.text(" "), " name   size\n a     1,000\n long      7\n");
}

// A config.json of each family, as small as it gets.
json grouped(const std::string& type) {
  return {{"model_type", type},
          {"hidden_act", "silu"},
          {"hidden_size", 64},
          {"intermediate_size", 96},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"head_dim", 24},
          {"vocab_size", 256},
          {"rms_norm_eps", 1e-5},
          {"max_position_embeddings", 512},
          {"rope_theta", 10000}};
}

json with(json config, const json& more) {
  config.update(more);
  return config;
}

json without(json config, const char* key) {
  config.erase(key);
  return config;
}

json deepseek(const std::string& type) {
  return with(grouped(type), {{"q_lora_rank", 40},
                              {"kv_lora_rank", 32},
                              {"qk_nope_head_dim", 24},
                              {"qk_rope_head_dim", 16},
                              {"v_head_dim", 20},
                              {"first_k_dense_replace", 1},
                              {"n_routed_experts", 16},
                              {"num_experts_per_tok", 4},
                              {"n_shared_experts", 1},
                              {"moe_intermediate_size", 16},
                              {"routed_scaling_factor", 2.827},
                              {"n_group", 4},
                              {"topk_group", 2}});
}

std::map<std::string, json> families() {
  const json yarn = {{"rope_type", "yarn"},
                     {"factor", 40},
                     {"beta_fast", 32},
                     {"beta_slow", 1},
                     {"mscale", 0.707},
                     {"mscale_all_dim", 0.707},
                     {"original_max_position_embeddings", 128}};
  const json llama3 = {{"rope_type", "llama3"},
                       {"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 64}};
  const json moe = {{"num_experts", 8}, {"num_experts_per_tok", 2}, {"moe_intermediate_size", 32}};
  return {
      {"llama", grouped("llama")},
      {"llama tied", with(grouped("llama"), {{"tie_word_embeddings", true}})},
      {"llama 3.1", with(grouped("llama"), {{"rope_scaling", llama3}})},
      {"mistral", grouped("mistral")},
      {"qwen3", grouped("qwen3")},
      {"qwen3 yarn",
       with(grouped("qwen3"),
            {{"rope_scaling",
              {{"rope_type", "yarn"}, {"factor", 4}, {"original_max_position_embeddings", 128}}}})},
      {"qwen3 yarn without a temperature",
       with(grouped("qwen3"), {{"rope_scaling",
                                {{"rope_type", "yarn"},
                                 {"factor", 4},
                                 {"attention_factor", 1.0},
                                 {"original_max_position_embeddings", 128}}}})},
      {"llama linear", with(grouped("llama"), {{"rope_scaling", {{"type", "linear"}, {"factor", 2}}}})},
      {"qwen3 windows",
       with(grouped("qwen3"),
            {{"use_sliding_window", true}, {"sliding_window", 5}, {"max_window_layers", 1}})},
      {"qwen3_moe windows",
       with(with(grouped("qwen3_moe"), moe), {{"use_sliding_window", true}, {"sliding_window", 5}})},
      {"deepseek_v3 no mscale", with(deepseek("deepseek_v3"), {{"rope_scaling", without(yarn, "mscale")}})},
      {"deepseek_v3 neither mscale",
       with(deepseek("deepseek_v3"), {{"rope_scaling", without(without(yarn, "mscale"), "mscale_all_dim")}})},
      {"deepseek_v3 attention_factor",
       with(deepseek("deepseek_v3"),
            {{"rope_scaling",
              with(without(without(yarn, "mscale"), "mscale_all_dim"), {{"attention_factor", 1.0}})}})},
      {"mixtral", with(grouped("mixtral"), {{"num_local_experts", 8}, {"num_experts_per_tok", 2}})},
      {"qwen3_moe", with(grouped("qwen3_moe"), moe)},
      {"qwen3_moe normalised", with(with(grouped("qwen3_moe"), moe), {{"norm_topk_prob", true}})},
      {"deepseek_v2", with(deepseek("deepseek_v2"), {{"topk_method", "group_limited_greedy"}})},
      {"deepseek_v2 greedy",
       with(deepseek("deepseek_v2"), {{"q_lora_rank", nullptr}, {"n_shared_experts", 2}})},
      {"deepseek_v3", with(deepseek("deepseek_v3"), {{"rope_scaling", yarn}})},
      {"deepseek_v3 halves", with(deepseek("deepseek_v3"), {{"rope_interleave", false}})},
      {"kimi_k2", with(deepseek("kimi_k2"), {{"n_group", 1}, {"topk_group", 1}})}};
}

TEST(HubExport, EveryFamilyComesBack) {
  for (const auto& [name, original] : families()) {
    SCOPED_TRACE(name);
    const json exported = config_to_hub(config_of_hub(original), "float32");
    EXPECT_EQ(config_from_hub(exported), config_from_hub(original)) << exported.dump(1);
    EXPECT_EQ(exported["torch_dtype"], "float32");
    EXPECT_EQ(unknown_fields_notice(exported), "");
    EXPECT_TRUE(exported["architectures"][0].get<std::string>().ends_with("ForCausalLM"));
  }
}

// What a run or a manifest keeps is every key; the model of them is the same.
TEST(HubExport, ThroughStoredKeys) {
  for (const auto& [name, original] : families()) {
    SCOPED_TRACE(name);
    const Config config = config_of_hub(original);
    const Config stored = config_of_stored(config.resolved(), "manifest");
    EXPECT_EQ(differing_key(model_config(config), model_config(stored)), "");
    EXPECT_EQ(config_from_hub(json(config_to_hub(stored, "bfloat16"))), config_from_hub(original));
  }
  EXPECT_THROW(config_of_stored(json::array(), "manifest"), Error);
}

void expect_no_form(std::vector<std::string> overrides, const std::string& words) {
  overrides.insert(overrides.begin(),
                   {"base_emb_dim=64", "base_num_query_heads=4", "base_num_kv_heads=4", "head_dim=16"});
  try {
    config_to_hub(hub_form(Config::from_args(overrides)).config, "float32");
    ADD_FAILURE() << "accepted, expected an error with: " << words;
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), Error::Kind::usage);
    EXPECT_NE(std::string(e.what()).find(words), std::string::npos) << e.what();
  }
}

using Keys = std::vector<std::string>;

Keys operator+(Keys keys, const Keys& more) {
  keys.insert(keys.end(), more.begin(), more.end());
  return keys;
}
const Keys kMixtralKeys{"decoder_block=mixtral", "num_experts=4", "base_mlp_dim=32"};
const Keys kLatent{"decoder_block=deepseek", "attention_type=mla", "num_experts=4",
                   "base_moe_mlp_dim=32",    "kv_lora_rank=16",    "qk_nope_head_dim=16",
                   "qk_rope_head_dim=8",     "v_head_dim=16"};

TEST(HubExport, NamesTheKeyThatNoFamilyHas) {
  const Keys short_latent = kLatent + Keys{"max_position_embeddings=64"};
  expect_no_form(kMixtralKeys + Keys{"routed_score_func=sigmoid"}, "routed_score_func=sigmoid");
  expect_no_form(kMixtralKeys + Keys{"shared_experts=1"}, "shared_experts=1");
  expect_no_form(kMixtralKeys + Keys{"use_random_routing=true"}, "use_random_routing=true");
  expect_no_form(kMixtralKeys + Keys{"use_qk_norm=true", "routed_score_func=softmax"}, "use_qk_norm=true");
  expect_no_form(short_latent + Keys{"routed_score_func=softmax", "norm_topk_prob=true"},
                 "norm_topk_prob=true");
  expect_no_form(short_latent + Keys{"routed_score_func=softmax", "rope_type=yarn"},
                 "max_position_embeddings=64");
  expect_no_form(short_latent + Keys{"model_name=kimi-k2-1t", "num_experts_per_tok=2",
                                     "override_model_config=true", "compat=maxtext-2026-08"},
                 "compat=maxtext-2026-08, model_name=kimi-k2-1t");
}

// The keys, the type of config.json, the factors on weights, and whether the bits stay.
struct OtherForm {
  Keys keys;
  const char* type;
  std::map<std::string, float> factors;
  bool same_bits;
};

TEST(HubForm, WhatWeightsCanSay) {
  const Keys small{"base_emb_dim=64", "base_num_query_heads=4", "base_num_kv_heads=4", "head_dim=16"};
  const Keys tied{"logits_via_embedding=true"};
  const auto root = [](double x) { return static_cast<float>(std::sqrt(x)); };
  const float latent = root(1e-6 / static_cast<double>(1e-5f));  // of epsilons, as the next factors
  const auto temperature = static_cast<float>(std::pow(0.1 * std::log(40.0) + 1, 2));
  const std::vector<OtherForm> forms{
      {{}, "llama", {}, true},
      {{"compat=maxtext"}, "llama", {{"attention.query", 4}}, true},
      {{"compat=maxtext", "head_dim=8"}, "llama", {{"attention.query", root(8)}}, false},
      {{"compat=maxtext", "decoder_block=qwen3", "use_qk_norm=true"}, "qwen3", {}, true},
      {kMixtralKeys + Keys{"compat=maxtext"}, "mixtral", {{"attention.query", 4}}, false},
      {kMixtralKeys + Keys{"compat=maxtext", "decoder_block=qwen3_moe", "use_qk_norm=true"},
       "qwen3_moe",
       {},
       false},
      {tied, "llama", {{"final_norm", 0.125f}}, true},
      {tied + Keys{"base_emb_dim=32"}, "llama", {{"final_norm", 1 / root(32)}}, false},
      {tied + Keys{"compat=maxtext"}, "llama", {{"attention.query", 4}, {"final_norm", 0.125f}}, true},
      {{"use_qk_norm=true"}, "qwen3", {}, true},
      {{"decoder_block=qwen3"}, "llama", {}, true},
      {kMixtralKeys + Keys{"use_qk_norm=true"}, "qwen3_moe", {}, false},
      {kMixtralKeys + Keys{"routed_scaling_factor=2"}, "mixtral", {}, true},
      {kLatent + Keys{"routed_score_func=sigmoid", "max_position_embeddings=64"},
       "deepseek_v3",
       {{"attention.wkv_a", latent}},
       false},
      {kLatent + Keys{"routed_score_func=sigmoid", "max_position_embeddings=64", "q_lora_rank=8",
                      "attention_bias=true"},
       "deepseek_v3",
       {{"attention.wkv_a", latent},
        {"attention.wkv_a_bias", latent},
        {"attention.wq_a", latent},
        {"attention.wq_a_bias", latent}},
       false},
      {kLatent + Keys{"routed_score_func=sigmoid", "max_position_embeddings=64", "latent_norm_epsilon=1e-6"},
       "deepseek_v3",
       {},
       true},
      {kLatent + Keys{"routed_score_func=softmax"},
       "deepseek_v2",
       {{"attention.query", temperature}, {"attention.wkv_a", latent}},
       false},
      {kLatent + Keys{"routed_score_func=softmax", "q_lora_rank=8"},
       "deepseek_v2",
       {{"attention.wq_b", temperature}, {"attention.wkv_a", latent}, {"attention.wq_a", latent}},
       false},
      {kLatent + Keys{"routed_score_func=softmax", "norm_topk_prob=true", "compat=maxtext", "mscale=0"},
       "deepseek_v2",
       {{"attention.wkv_a", latent}},
       false}};
  for (const OtherForm& expected : forms) {
    SCOPED_TRACE(::testing::PrintToString(expected.keys));
    const HubForm form = hub_form(Config::from_args(small + expected.keys));
    EXPECT_EQ(form.factors, expected.factors);
    EXPECT_EQ(form.same_bits, expected.same_bits);
    EXPECT_GE(form.notices.size(), expected.factors.size());
    const json hub = config_to_hub(form.config, "float32");
    EXPECT_EQ(hub["model_type"], expected.type);
    EXPECT_EQ(differing_key(model_config(form.config), model_config(config_of_hub(hub))), "");
  }
}

TEST(HubForm, FactorsMayBeOfTheFirstColumns) {
  const Tensor x(DType::f32, {2, 3});
  for (std::int64_t i = 0; i < 6; ++i) x.data<float>()[i] = static_cast<float>(i + 1);
  const auto values = [](const Tensor& t) {
    return std::vector<float>(t.data<float>(), t.data<float>() + t.size());
  };
  EXPECT_EQ(values(scaled(x, 10, DType::f32, 2)), (std::vector<float>{10, 20, 3, 40, 50, 6}));
  EXPECT_EQ(values(scaled(x, 10, DType::f32)), (std::vector<float>{10, 20, 30, 40, 50, 60}));
  const HubForm form = hub_form(Config::from_args(
      kLatent + Keys{"base_emb_dim=64", "routed_score_func=sigmoid", "max_position_embeddings=64"}));
  EXPECT_EQ(form.columns_of("layers.0.attention.wkv_a"), 16);  // the latent's, not what is rotated
  EXPECT_EQ(form.columns_of("layers.0.attention.wq_a"), 0);
}

// All models that come with the sources, but those that transformers has no class for.
TEST(HubExport, ModelFiles) {
  int exported = 0;
  for (const auto& file :
       std::filesystem::directory_iterator(std::string(kSourceFolder) + "/configs/models")) {
    const std::string name = file.path().stem().string();
    SCOPED_TRACE(name);
    const std::vector<std::string> arguments{"model_name=" + name};
    if (name == "deepseek-custom") continue;  // has parts that are not built
    const Config config = Config::from_args(arguments);
    if (name == "qwen3-custom-30b-a3b" || name.starts_with("envy-")) {
      EXPECT_THROW(config_to_hub(config, "bfloat16"), Error);
      continue;
    }
    const Config stored = config_of_stored(config.resolved(), name);
    EXPECT_EQ(differing_key(model_config(config), model_config(stored)), "");
    EXPECT_NO_THROW(config_to_hub(stored, "bfloat16"));
    ++exported;
  }
  EXPECT_GT(exported, 25);
}

TEST(StoredNames, ExpertsOneByOne) {
  const ModelConfig model = model_config(config_of_hub(families().at("mixtral")));
  const auto pairs = stored_pairs(parameter_specs(model), kMixtral);
  std::map<std::string, const StoredPair*> by_name;
  for (const auto& pair : pairs) by_name[pair.ours] = &pair;
  const StoredPair& last = *by_name.at("layers.1.moe.experts.7.wo");
  EXPECT_EQ(last.theirs, "model.layers.1.block_sparse_moe.experts.7.w2.weight");
  EXPECT_EQ(last.shape, (Shape{96, 64}));
  EXPECT_EQ(last.hub.shape, (Shape{64, 96}));
  EXPECT_EQ(pairs.size(), 3u + 2 * (2 + 4 + 1 + 8 * 3));
}

}  // namespace
}  // namespace switchyard

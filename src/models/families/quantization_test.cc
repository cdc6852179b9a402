// Forms of weights that folders state: those that are read, and the line for those that are not.
#include "models/families/quantization.h"

#include <gtest/gtest.h>

#include <fstream>

#include "checkpoint/int4_weight.h"
#include "core/error.h"

namespace switchyard {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

class Quantization : public ::testing::Test {
 protected:
  Quantization() { fs::create_directories(folder_); }
  ~Quantization() override { fs::remove_all(folder_); }

  // The line for a config.json, and for a file of another name beside it; empty: it is read.
  std::string line(const json& config, const std::string& file = "", const json& content = {}) {
    if (!file.empty()) std::ofstream(folder_ / file) << content.dump();
    std::string told;
    try {
      check_quantization_of(folder_, config);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::usage);
      told = error.what();
      EXPECT_EQ(told.find('\n'), std::string::npos) << told;
    }
    if (!file.empty()) fs::remove(folder_ / file);
    return told;
  }
  std::string line_of(const json& form) { return line({{"quantization_config", form}}); }

  const fs::path folder_ = fs::temp_directory_path() / ("quantization_" + std::to_string(::getpid()));
};

TEST_F(Quantization, FormsThatAreRead) {
  EXPECT_EQ(line(json::object()), "");
  EXPECT_EQ(line_of(nullptr), "");
  for (const char* form :
       {R"({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128], "scale_fmt": "ue8m0"})",
        R"({"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_v2", "sym": true})",
        R"({"quant_method": "gptqmodel", "bits": 4})", R"({"quant_method": "mxfp4"})",
        R"({"quant_method": "auto-round", "bits": 4, "packing_format": "auto_round:auto_gptq"})"})
    EXPECT_EQ(line_of(json::parse(form)), "") << form;
}

// What tells them is in the line, wherever its key stands in the alphabet.
TEST_F(Quantization, OthersAreNamed) {
  const json groups = {
      {"group_0", {{"targets", {"Linear"}}, {"weights", {{"num_bits", 4}, {"type", "float"}}}}}};
  const struct {
    json form;
    std::string words, why = {};
  } cases[] = {
      {{{"quant_method", "compressed-tensors"},
        {"format", "pack-quantized"},
        {"config_groups", groups},
        {"ignore", json(std::vector<std::string>(40, "a.long.name"))}},
       "quant_method=compressed-tensors, format=pack-quantized, num_bits=4, type=float: ",
       " for its type"},
      {{{"quant_method", "compressed-tensors"}, {"format", "nvfp4-pack-quantized"}},
       "quant_method=compressed-tensors, format=nvfp4-pack-quantized: ",
       " for its format"},
      {{{"quant_method", "awq"}, {"bits", 4}, {"version", "gemm"}, {"group_size", 128}},
       "quant_method=awq, version=gemm, bits=4, group_size=128: "},
      {{{"quant_method", "gptq"}, {"bits", 8}}, "quant_method=gptq, bits=8: "},
      {{{"quant_method", "gptq"}, {"bits", 4}, {"checkpoint_format", "marlin"}},
       "quant_method=gptq, checkpoint_format=marlin, bits=4: "},
      {{{"quant_method", "auto-round"}, {"bits", 4}, {"packing_format", "auto_round:auto_awq"}},
       "quant_method=auto-round, packing_format=auto_round:auto_awq, bits=4: "},
      {{{"quant_method", "fp8"}, {"weight_block_size", {64, 64}}},
       "quant_method=fp8, weight_block_size=[64,64]: "},
      {{{"quant_method", "fp8"}, {"fmt", "e5m2"}, {"weight_block_size", {128, 128}}},
       "quant_method=fp8, fmt=e5m2, weight_block_size=[128,128]: "},
      {{{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}}, "quant_method=modelopt, quant_algo=NVFP4: "},
      {{{"quant_method", "bitsandbytes"}, {"load_in_4bit", true}, {"bnb_4bit_quant_type", "nf4"}},
       "quant_method=bitsandbytes, load_in_4bit=true, bnb_4bit_quant_type=nf4: "},
      {"awq", "quantization_config: awq: "},
  };
  for (const auto& [form, words, why] : cases) {
    const std::string told = line_of(form);
    EXPECT_NE(told.find("[hub config] quantization_config: "), std::string::npos) << told;
    EXPECT_NE(told.find(words + "this form of weights is not supported" + why +
                        "; expected none, quant_method=fp8"),
              std::string::npos)
        << told;
  }
  const std::string compressed = line({{"compression_config", {{"format", "int-quantized"}}}});
  EXPECT_NE(compressed.find("compression_config: format=int-quantized: "), std::string::npos) << compressed;
  const std::string mlx = line({{"quantization", {{"bits", 4}, {"group_size", 64}}}});
  EXPECT_NE(mlx.find("quantization: bits=4, group_size=64: "), std::string::npos) << mlx;
}

// A file of compressed-tensors is read if its weights have four symmetric bits and nothing else is rounded.
TEST_F(Quantization, CompressedTensorsOfFourBitsAreRead) {
  json form = {{"quant_method", "compressed-tensors"},
               {"format", "pack-quantized"},
               {"ignore", {"lm_head"}},
               {"kv_cache_scheme", nullptr},
               {"config_groups",
                {{"group_0",
                  {{"targets", {"Linear"}},
                   {"input_activations", nullptr},
                   {"weights",
                    {{"num_bits", 4},
                     {"type", "int"},
                     {"symmetric", true},
                     {"strategy", "group"},
                     {"group_size", 32},
                     {"actorder", nullptr}}}}}}}};
  EXPECT_NO_THROW(check_quantization({{"quantization_config", form}}));
  json& weights = form["config_groups"]["group_0"]["weights"];
  weights["strategy"] = "channel";
  EXPECT_NO_THROW(check_quantization({{"quantization_config", form}}));
  const std::pair<const char*, json> others[] = {
      {"symmetric", false}, {"num_bits", 8}, {"strategy", "tensor"}, {"type", "float"}};
  for (const auto& [key, value] : others) {
    const json before = weights[key];
    weights[key] = value;
    EXPECT_NE(line_of(form).find(std::string("for its ") + key), std::string::npos) << line_of(form);
    weights[key] = before;
  }
  form["config_groups"]["group_0"]["input_activations"] = {{"num_bits", 8}};
  EXPECT_NE(line_of(form).find("for its input_activations"), std::string::npos) << line_of(form);
}

TEST_F(Quantization, FilesBesideTheConfigAreAsked) {
  const json plain = json::object();
  const std::string modelopt =
      line(plain, "hf_quant_config.json",
           {{"quantization", {{"quant_algo", "FP8"}, {"kv_cache_quant_algo", nullptr}}}});
  EXPECT_NE(modelopt.find("hf_quant_config.json: quant_method=modelopt, quant_algo=FP8: "),
            std::string::npos);
  EXPECT_EQ(line(plain, "hf_quant_config.json", {{"quantization", {{"quant_algo", nullptr}}}}), "");
  const std::string awq =
      line(plain, "quant_config.json", {{"w_bit", 4}, {"q_group_size", 128}, {"version", "GEMM"}});
  EXPECT_NE(awq.find("quant_config.json: quant_method=awq, version=GEMM, w_bit=4, q_group_size=128: "),
            std::string::npos);
  EXPECT_EQ(line(plain, "quantize_config.json", {{"bits", 4}, {"group_size", 128}}), "");
  const std::string eight = line(plain, "quantize_config.json", {{"bits", 8}, {"group_size", 128}});
  EXPECT_NE(eight.find("quantize_config.json: quant_method=gptq, bits=8, group_size=128: "),
            std::string::npos);
  // The config's own word counts.
  EXPECT_EQ(line({{"quantization_config", {{"quant_method", "mxfp4"}}}}, "quant_config.json", {{"w_bit", 4}}),
            "");
}

}  // namespace
}  // namespace switchyard

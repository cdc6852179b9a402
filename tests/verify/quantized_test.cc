// `switchyard verify` on models of few bits: GGUF files, and folders of 8-bit and GPTQ weights.
#include <bit>
#include <cmath>
#include <functional>
#include <limits>

#include "core/sha256.h"
#include "damaged_case.h"
#include "gguf/gguf_file.h"

namespace switchyard::verify_test {
namespace {

using nlohmann::json;

std::vector<std::string> quantized_cases() {
  std::vector<std::string> cases;
  for (const auto& item : fs::recursive_directory_iterator(kGolden / "gguf")) {
    if (item.path().extension() == ".gguf") cases.push_back(item.path());
  }
  for (const auto& item : fs::directory_iterator(kGolden / "quantized")) cases.push_back(item.path());
  std::sort(cases.begin(), cases.end());
  return cases;
}

float next_up(float value, int steps) {
  return std::bit_cast<float>(std::bit_cast<std::int32_t>(value) + steps);
}

class QuantizedCaseTest : public DamagedCase {
 protected:
  // A GGUF file and what stands beside it, in a folder of its own.
  fs::path copy_gguf(const std::string& model, const std::string& type) {
    const fs::path from = kGolden / "gguf" / model, to = folder_ / model;
    fs::remove_all(to);
    fs::create_directories(to);
    for (const std::string& file : {type + ".gguf", type + ".expected.safetensors"})
      fs::copy_file(from / file, to / file);
    fs::copy_file(from / "tensors.json", to / "tensors.json");
    return to / (type + ".gguf");
  }
  static fs::path expected_of(const fs::path& gguf) {
    fs::path expected = gguf;
    return expected.replace_extension(".expected.safetensors");
  }
  static void change_json(const fs::path& file, const std::function<void(json&)>& change) {
    json stated = json::parse(text_of(file));
    change(stated);
    write(file, stated.dump());
  }
  static void change_stated(const fs::path& gguf, const std::function<void(json&)>& change) {
    change_json(gguf.parent_path() / "tensors.json",
                [&](json& all) { change(all.at(gguf.stem().string())); });
  }
  static void change_tensors(const fs::path& file,
                             const std::function<void(std::map<std::string, Tensor>&)>& change) {
    std::map<std::string, Tensor> tensors;
    {
      const SafetensorsFile stored = SafetensorsFile::open(file);
      for (const auto& item : stored.entries()) tensors[item.first] = stored.read(item.first);
    }
    change(tensors);
    write_safetensors(file, tensors, {});
  }
  // Another hash than that of the tensor's values.
  static void spoil_hash(json& tensor) { tensor["sha256"] = std::string(64, '0'); }
};

TEST_F(QuantizedCaseTest, StoredCasesPass) {
  const std::vector<std::string> cases = quantized_cases();
  ASSERT_EQ(cases.size(), 15u);
  const std::string file = folder_ / "report.json";
  std::vector<std::string> args = cases;
  args.insert(args.end(), {"--native", "--json", file});
  const Outcome outcome = verify(args);
  EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
  EXPECT_NE(outcome.out.find("15 of 15 cases pass"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("blocks of q4_k"), std::string::npos) << outcome.out;
  const json report = json::parse(text_of(file));
  for (const json& item : report.at("cases")) {
    SCOPED_TRACE(item.at("case").get<std::string>());
    EXPECT_TRUE(item.at("pass").get<bool>());
    std::size_t stored = 0;
    for (const json& tensor : item.at("tensors")) {
      const std::string name = tensor.at("name");
      if (name == "logits") {
        EXPECT_EQ(tensor.at("tolerance"), 1e-4);
        EXPECT_LT(tensor.at("max_rel").get<double>(), 1e-5);
        EXPECT_GT(tensor.at("max_rel").get<double>(), 0);
      } else if (tensor.at("judged").get<bool>()) {
        EXPECT_EQ(tensor.at("max_abs"), 0) << name;
        ++stored;
      } else {
        EXPECT_EQ(name, "logits as generate computes");
        EXPECT_GT(tensor.at("max_rel").get<double>(), 1e-4) << "not in bfloat16";
      }
    }
    EXPECT_GE(stored, 4u);  // the stacks of an MXFP4 folder; of the others every tensor, 23 and more
    const json& native = item.at("native");
    EXPECT_EQ(native.at("dtype"), "bfloat16");
    EXPECT_EQ(native.at("weight_format"), "stored");
    EXPECT_GE(native.at("tokens").get<int>(), 10);
    EXPECT_GT(native.at("mean_kl").get<double>(), 1e-7);
    EXPECT_LT(native.at("mean_kl").get<double>(), 0.02);
    EXPECT_GE(native.at("same_top").get<double>(), 0.7);
    EXPECT_LE(native.at("same_top").get<double>(), 1);
  }
}

TEST(VerifyQuantized, OnEveryLayout) {
  const std::vector<std::string> cases{kGolden / "gguf/qwen3moe/Q4_0.gguf",
                                       kGolden / "gguf/deepseek3/Q5_0.gguf",
                                       kGolden / "quantized/deepseek3-fp8"};
  for (const char* layout :
       {"ranks=2 ici_expert_parallelism=2", "ranks=4 ici_fsdp_parallelism=2 ici_tensor_parallelism=2",
        "ranks=4 ici_expert_parallelism=2 ici_fsdp_parallelism=2 use_ring_of_experts=true",
        "ranks=2 ici_pipeline_parallelism=2"}) {
    expect_pass(cases, std::string(layout) + " --native");
  }
  expect_pass({kGolden / "quantized/deepseek3-fp8-partial"}, "ranks=2 ici_fsdp_parallelism=2 --native");
}

// dtype and weight_format are keys of the second run alone, where there is one.
TEST_F(QuantizedCaseTest, KeysOfArithmeticAreTheNativeRuns) {
  const std::string file = folder_ / "report.json", gguf = kGolden / "gguf/qwen3moe/Q4_0.gguf";
  for (const std::string format : {"stored", "dense"}) {
    const Outcome outcome =
        verify({gguf, "--native", "--json", file, "dtype=float32", "weight_format=" + format});
    EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
    const json item = json::parse(text_of(file)).at("cases").at(0);
    EXPECT_EQ(item.at("native").at("dtype"), "float32");
    EXPECT_EQ(item.at("native").at("weight_format"), format);
    EXPECT_EQ(outcome.out.find("in blocks of int4") != std::string::npos, format == "stored") << outcome.out;
    EXPECT_LT(item.at("native").at("mean_kl").get<double>(), 1e-8);
    EXPECT_EQ(item.at("native").at("same_top"), 1);
    const json& last = item.at("tensors").back();
    EXPECT_EQ(last.at("name"), "logits as generate computes");
    EXPECT_LT(last.at("max_rel").get<double>(), 1e-5);
  }
  expect_difference({gguf, "dtype=bfloat16"}, "logits");
  expect_pass({gguf, "--tolerance", "0.1"}, "dtype=bfloat16");
  expect_difference({gguf, "--tolerance", "1e-9"}, "logits");
}

TEST_F(QuantizedCaseTest, OneOtherBitIsFound) {
  const fs::path gguf = copy_gguf("deepseek3", "Q4_1");
  std::size_t at = 0;
  {
    const GgufFile file = GgufFile::open(gguf);
    const std::string bytes = text_of(gguf);
    const auto block = file.at("blk.1.attn_output.weight").bytes.subspan(0, 20);
    at = bytes.find(std::string(reinterpret_cast<const char*>(block.data()), block.size()));
    ASSERT_NE(at, std::string::npos);
  }
  std::string bytes = text_of(gguf);
  bytes[at + 7] = static_cast<char>(bytes[at + 7] ^ 1);
  write(gguf, bytes);
  expect_difference({gguf}, "layer 1, blk.1.attn_output.weight");

  const fs::path folder = copy("quantized/deepseek3-fp8-partial");
  change_json(folder / "tensors.json", [](json& stated) {
    spoil_hash(stated.at("model.layers.0.self_attn.kv_a_proj_with_mqa.weight"));
  });
  expect_difference({folder}, "layer 0, model.layers.0.self_attn.kv_a_proj_with_mqa.weight");
}

TEST_F(QuantizedCaseTest, NumbersThatAreNotFiniteFailAlsoInTheNativeRun) {
  const fs::path gguf = copy_gguf("qwen3moe", "Q4_0");
  std::string bytes = text_of(gguf);
  std::size_t at = 0;
  {
    const GgufFile file = GgufFile::open(gguf);
    const auto values = file.at("output_norm.weight").bytes;
    at = bytes.find(std::string(reinterpret_cast<const char*>(values.data()), values.size()));
    ASSERT_NE(at, std::string::npos);
  }
  bytes.replace(at, 4, std::string("\0\0\xc0\x7f", 4));
  write(gguf, bytes);
  const std::string report = folder_ / "report.json";
  expect_difference({gguf, "--native", "--tolerance", "1e9", "--json", report}, "output_norm.weight");
  const json tensors = json::parse(text_of(report)).at("cases").at(0).at("tensors");
  for (std::size_t i = tensors.size() - 2; i < tensors.size(); ++i)
    EXPECT_FALSE(tensors[i].at("pass").get<bool>()) << tensors[i];
  EXPECT_EQ(tensors.back().at("failure"), "not finite");
}

// A type with an offset may be an ulp off in the rows that are given; nothing else may.
TEST_F(QuantizedCaseTest, RowsAreComparedWhereTheHashDiffers) {
  const std::string name = "blk.1.attn_output.weight", values = "tensor." + name;
  const auto shifted = [&](const std::string& model, const std::string& type, int ulps) {
    const fs::path gguf = copy_gguf(model, type);
    change_stated(gguf, [&](json& stated) { spoil_hash(stated.at(name)); });
    change_tensors(expected_of(gguf), [&](std::map<std::string, Tensor>& tensors) {
      float& value = tensors.at(values).span<float>()[3];
      ASSERT_GT(std::abs(value), 1e-6f);
      value = next_up(value, ulps);
    });
    return gguf;
  };
  for (const int ulps : {1, -1}) expect_pass({shifted("deepseek3", "Q4_1", ulps)}, "");
  expect_difference({shifted("deepseek3", "Q4_1", 0)}, "layer 1, " + name);  // so that it lies elsewhere
  expect_difference({shifted("deepseek3", "Q4_1", 2)}, "layer 1, " + name);
  for (const int ulps : {0, 1}) expect_difference({shifted("deepseek3", "Q5_0", ulps)}, "layer 1, " + name);
  const fs::path gguf = copy_gguf("deepseek3", "Q4_1");
  change_stated(gguf, [&](json& stated) { spoil_hash(stated.at("blk.0.attn_output.weight")); });
  expect_difference({gguf}, "layer 0, blk.0.attn_output.weight");  // of which no rows are given
}

TEST_F(QuantizedCaseTest, OtherLogitsAreADifference) {
  const fs::path gguf = copy_gguf("qwen3moe", "Q4_0");
  const Tensor right = SafetensorsFile::open(expected_of(gguf)).read("logits");
  const float was = right.span<float>()[100];
  change(expected_of(gguf), "logits", 100, was + 0.01f);
  expect_difference({gguf}, "logits");
  // Either of two kinds of logits will do.
  change_tensors(expected_of(gguf), [&](std::map<std::string, Tensor>& tensors) {
    tensors["logits_truncated_yarn"] = right.clone();
  });
  expect_pass({gguf, "--native"}, "");
  change(expected_of(gguf), "logits_truncated_yarn", 100, was + 0.02f);
  expect_difference({gguf}, "logits");
  change(expected_of(gguf), "logits", 100, std::numeric_limits<float>::quiet_NaN());
  change(expected_of(gguf), "logits_truncated_yarn", 100, std::numeric_limits<float>::quiet_NaN());
  expect_difference({gguf, "--tolerance", "1e9"}, "logits");
}

TEST_F(QuantizedCaseTest, WhatIsMissingIsNamedInOneLine) {
  const fs::path gguf = copy_gguf("qwen3moe", "Q4_0");
  const auto refused = [&](const std::function<void()>& damage, const std::string& part) {
    copy_gguf("qwen3moe", "Q4_0");
    damage();
    expect_refusal({gguf}, part);
  };
  const auto stated = [&](const std::function<void(json&)>& change) {
    return [&, change] { change_stated(gguf, change); };
  };
  const auto given = [&](const std::function<void(std::map<std::string, Tensor>&)>& change) {
    return [&, change] { change_tensors(expected_of(gguf), change); };
  };
  const fs::path list = gguf.parent_path() / "tensors.json";
  refused([&] { fs::remove(expected_of(gguf)); }, "there is no " + expected_of(gguf).string());
  refused([&] { fs::remove(list); }, "there is no " + list.string());
  refused([&] { write(list, "{"); }, "tensors.json");
  refused([&] { write(list, "{}"); }, "states no tensors of \"Q4_0\"");
  refused(stated([](json& all) { all = json::object(); }), "nothing would be compared");
  refused(stated([](json& all) { all = 3; }), "nothing would be compared");
  refused(stated([](json& all) { all.erase("blk.0.attn_k.weight"); }),
          "does not state tensor \"blk.0.attn_k.weight\"");
  refused(stated([](json& all) { all["blk.7.attn_k.weight"] = all["blk.0.attn_k.weight"]; }),
          "states tensor \"blk.7.attn_k.weight\"");
  refused(stated([](json& all) {
            all["blk.0.attn_k.weight"]["shape"] = {1, 2};
          }),
          "states tensor \"blk.0.attn_k.weight\" as [1,2]");
  refused(stated([](json& all) { all["blk.0.attn_k.weight"].erase("sha256"); }), "'sha256' not found");
  refused(stated([](json& all) {
            spoil_hash(all["output.weight"]);
            all["output.weight"]["rows"].back() = 288;
          }),
          "row 288");
  refused(stated([](json& all) {
            spoil_hash(all["output.weight"]);
            all["output.weight"]["rows"].push_back(1);
          }),
          "expected 5 rows");
  refused(stated([](json& all) { all["output.weight"].erase("rows"); }), "holds rows of \"output.weight\"");
  refused(given([](auto& all) { all.erase("logits"); }), "logits");
  refused(given([](auto& all) { all.erase("input_ids"); }), "input_ids");
  refused(given([](auto& all) { all["input_ids"] = Tensor::zeros(DType::i32, {0}); }), "input_ids");
  refused(given([](auto& all) { all["input_ids"] = Tensor::zeros(DType::i32, {3}); }), "expected logits");
  refused(given([](auto& all) { all["input_ids"].template data<std::int32_t>()[2] = 288; }), "token 288");
  refused(given([](auto& all) { all["surplus"] = Tensor::zeros(DType::f32, {1}); }), "\"surplus\"");
  refused([&] { fs::resize_file(gguf, fs::file_size(gguf) / 2); }, "Q4_0.gguf");
  refused([&] { write(gguf, "text"); }, "Q4_0.gguf");
}

TEST_F(QuantizedCaseTest, FoldersThatLackSomethingAreRefused) {
  const fs::path folder = copy("quantized/qwen3moe-gptq"), list = folder / "tensors.json";
  const std::string whole = text_of(list);
  change_json(list, [](json& all) { all.erase("model.layers.1.self_attn.k_proj.weight"); });
  expect_refusal({folder}, "does not state tensor \"model.layers.1.self_attn.k_proj.weight\"");
  write(list, "{}");
  expect_refusal({folder}, "nothing would be compared");
  fs::remove(list);
  expect_refusal({folder}, "there is no " + list.string());
  write(list, whole);
  fs::remove(folder / "expected.safetensors");
  expect_refusal({folder}, "there is no " + (folder / "expected.safetensors").string());
}

TEST_F(QuantizedCaseTest, FamiliesThatAreNotKnownAreRefused) {
  const fs::path folder = copy("quantized/deepseek3-fp8");
  change_json(folder / "config.json", [](json& config) { config["model_type"] = "gemma3"; });
  expect_refusal({folder}, "model_type=\"gemma3\"");
  const fs::path gguf = copy_gguf("qwen3moe", "Q4_0");
  std::string bytes = text_of(gguf);
  const std::string family = "qwen3moe";
  int places = 0;  // the architecture, and keys that begin with it
  for (std::size_t at = 0; (at = bytes.find(family, at)) != std::string::npos; ++places)
    bytes.replace(at, family.size(), "gpt-oss8");
  ASSERT_GT(places, 5);
  write(gguf, bytes);
  expect_refusal({gguf}, "general.architecture=\"gpt-oss8\"");
}

TEST(VerifyQuantized, NativeIsForSuchCasesOnly) {
  for (const std::vector<std::string>& args :
       {std::vector<std::string>{kGolden / "hf/qwen3moe-tiny", "--native"},
        std::vector<std::string>{kGolden / "maxtext_moe/qwen3_sparse_aux.safetensors", "--native"},
        std::vector<std::string>{"--mesh", "ranks=2", "--native"}}) {
    const Outcome outcome = verify(args);
    EXPECT_EQ(outcome.status, 2) << outcome.out;
    EXPECT_NE(outcome.err.find("--native is for"), std::string::npos) << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  }
}

TEST(Sha256, OfKnownBytes) {
  const std::string text = "abc";
  Sha256 empty, whole, pieces;
  whole.add(std::as_bytes(std::span(text)));
  for (const char& c : text) pieces.add(std::as_bytes(std::span(&c, 1)));
  const std::string wanted = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
  EXPECT_EQ(whole.hex(), wanted);
  EXPECT_EQ(pieces.hex(), wanted);
  EXPECT_EQ(empty.hex(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

// Lengths around a block's end: the padding needs one block more there. The sums are those of Python's
// hashlib.
TEST(Sha256, OfAnyLength) {
  Sha256 of_all;
  std::string text;
  for (int length = 0; length < 200; ++length) {
    Sha256 sum;
    sum.add(std::as_bytes(std::span(text)));
    const std::string hex = sum.hex();
    of_all.add(std::as_bytes(std::span(hex)));
    text += static_cast<char>(length % 251);
  }
  EXPECT_EQ(of_all.hex(), "7a38a844c9e159de39f0862ee2e28569a8250831150a3fbf0a59c001129b2fb2");
}

}  // namespace
}  // namespace switchyard::verify_test

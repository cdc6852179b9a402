// `switchyard verify` on folders with an adapter of PEFT: on every layout, and that it notices what is wrong.
#include <functional>

#include "core/json_file.h"
#include "damaged_case.h"

namespace switchyard::verify_test {
namespace {

using nlohmann::json;

std::vector<std::string> adapter_cases(const fs::path& folder) {
  std::vector<std::string> cases;
  for (const auto& item : fs::directory_iterator(folder))
    if (fs::exists(item.path() / "adapter") && fs::exists(item.path() / "io.safetensors") &&
        !fs::exists(item.path() / "data.jsonl"))
      cases.push_back(item.path());
  std::ranges::sort(cases);
  return cases;
}

TEST(VerifyAdapters, OnEveryLayout) {
  const std::vector<std::string> cases = adapter_cases(kGolden / "lora");
  ASSERT_GE(cases.size(), 2u);
  for (const char* layout :
       {"", "ranks=2 ici_tensor_parallelism=2", "ranks=2 ici_context_parallelism=2", "sparse_matmul=false",
        "ranks=2 ici_pipeline_parallelism=2", "ranks=4 ici_fsdp_parallelism=2 ici_tensor_parallelism=2",
        "ranks=4 ici_expert_parallelism=2 ici_fsdp_parallelism=2",
        "ranks=2 ici_expert_parallelism=2 use_ring_of_experts=true", "device=fenced", "remat_policy=full",
        "ranks=2 ici_data_parallelism=2 gradient_accumulation_steps=1"})
    expect_pass(cases, layout);
  const fs::path shared = fs::path(kSourceFolder) / "../shared/golden/lora";
  if (fs::exists(shared)) expect_pass(adapter_cases(shared), "");
}

// Pairs run under two models, in one pipeline stage.
TEST(VerifyPairs, OnEveryLayout) {
  const std::vector<std::string> cases{kGolden / "lora/dpo-dense", kGolden / "lora/dpo-moe"};
  for (const char* layout : {"", "ranks=2 ici_tensor_parallelism=2", "ranks=2 ici_context_parallelism=2",
                             "sparse_matmul=false", "ranks=4 ici_fsdp_parallelism=2 ici_tensor_parallelism=2",
                             "ranks=4 ici_expert_parallelism=2 ici_fsdp_parallelism=2",
                             "ranks=2 ici_expert_parallelism=2 use_ring_of_experts=true", "device=fenced",
                             "remat_policy=full", "gradient_accumulation_steps=2"})
    expect_pass(cases, layout);
}

class AdapterCases : public DamagedCase {
 protected:
  fs::path adapter_of(const fs::path& folder) { return folder / "adapter/adapter_model.safetensors"; }
  std::map<std::string, Tensor> tensors(const fs::path& file) {
    std::map<std::string, Tensor> all;
    const SafetensorsFile stored = SafetensorsFile::open(file);
    for (const auto& item : stored.entries()) all[item.first] = stored.read(item.first);
    return all;
  }
  // Changes a field of adapter_config.json.
  void state(const fs::path& folder, const std::string& key, const json& value) {
    const fs::path file = folder / "adapter/adapter_config.json";
    json config = read_json_file(file);
    config[key] = value;
    write(file, config.dump());
  }
  void refuse_field(const std::string& key, const json& value, const std::string& said) {
    const fs::path folder = copy("lora/mixtral-experts");
    state(folder, key, value);
    expect_refusal({folder}, said);
    fs::remove_all(folder);
  }
};

constexpr const char* kLayer = "base_model.model.model.layers.0.";

TEST_F(AdapterCases, WrongNumbersAreFound) {
  const fs::path folder = copy("lora/mixtral-experts");
  change(adapter_of(folder), std::string(kLayer) + "mlp.experts.lora_B.weight", 3, 9.0f);
  expect_difference({folder}, "logits");
  state(folder, "lora_alpha", 5);
  expect_difference({folder}, "logits");
}

TEST_F(AdapterCases, WrongNumbersOfPairsAreFound) {
  const fs::path folder = copy("lora/dpo-dense"), io = folder / "io.safetensors";
  expect_refusal({folder, "ranks=2", "ici_pipeline_parallelism=2"}, "ici_pipeline_parallelism=1");
  const std::string gradient = "grad." + std::string(kLayer) + "mlp.up_proj.lora_A.weight";
  change(io, gradient, 3, 9.0f);
  expect_difference({folder}, gradient);
  change(io, "reference_rejected_log_probs", 2, 9.0f);
  expect_difference({folder}, "reference_rejected_log_probs");
  const fs::path other = copy("lora/dpo-moe");
  json expected = read_json_file(other / "expected.json");
  expected["pairs"][1]["chosen"]["mask"][3] = 1;
  write(other / "expected.json", expected.dump());
  expect_refusal({other}, "pair 1");
}

// The sides of experts' tensors, as PEFT 0.18 wrote them: told by their widths.
TEST_F(AdapterCases, SwappedSidesAreRead) {
  const fs::path folder = copy("lora/mixtral-experts");
  std::map<std::string, Tensor> all = tensors(adapter_of(folder));
  constexpr std::int64_t kExperts = 6, kRank = 2;
  for (const char* layer : {"0", "1"}) {
    for (const char* module : {"mlp.experts.base_layer", "mlp.experts"}) {
      const std::string name = fmt::format("base_model.model.model.layers.{}.{}.lora_", layer, module);
      const Tensor a = all.at(name + "A.weight"), b = all.at(name + "B.weight");
      const std::int64_t in = a.dim(1), out = b.dim(0), rows = kExperts * kRank;
      const Tensor new_a(DType::f32, {rows, out}), new_b(DType::f32, {in, rows});
      for (std::int64_t e = 0; e < kExperts; ++e) {
        for (std::int64_t k = 0; k < kRank; ++k) {
          const std::int64_t row = e * kRank + k, column = k * kExperts + e;
          for (std::int64_t o = 0; o < out; ++o)
            new_a.data<float>()[row * out + o] = b.data<float>()[o * rows + column];
          for (std::int64_t i = 0; i < in; ++i)
            new_b.data<float>()[i * rows + column] = a.data<float>()[row * in + i];
        }
      }
      all[name + "A.weight"] = new_a;
      all[name + "B.weight"] = new_b;
    }
  }
  write_safetensors(adapter_of(folder), all, {});
  state(folder, "peft_version", "0.18.1");
  // Gradients and trained tensors keep the names and forms of the file: the logits alone can be compared.
  std::map<std::string, Tensor> io = tensors(folder / "io.safetensors");
  std::erase_if(io, [](const auto& item) { return item.first.starts_with("grad."); });
  write_safetensors(folder / "io.safetensors", io, {});
  fs::remove(folder / "trajectory.json");
  expect_pass({folder}, "");
}

TEST_F(AdapterCases, TensorsThatDoNotFitAreRefused) {
  const auto refuse = [&](const std::function<void(std::map<std::string, Tensor>&)>& damage,
                          const std::string& said) {
    const fs::path folder = copy("lora/mixtral-experts");
    std::map<std::string, Tensor> all = tensors(adapter_of(folder));
    damage(all);
    write_safetensors(adapter_of(folder), all, {});
    expect_refusal({folder}, said);
    fs::remove_all(folder);
  };
  const std::string q = std::string(kLayer) + "self_attn.q_proj.lora_",
                    experts = std::string(kLayer) + "mlp.experts.lora_";
  refuse([&](auto& all) { all.erase(q + "B.weight"); }, q + "B.weight is missing");
  refuse([&](auto& all) { all[q + "A.weight"] = Tensor::zeros(DType::f32, {2, 31}); }, "expected 32 inputs");
  refuse([&](auto& all) { all[q + "A.weight"] = Tensor::zeros(DType::f32, {3, 32}); }, "has rank 3");
  refuse(
      [&](auto& all) {
        all[q + "A.weight"].template span<float>()[0] = std::numeric_limits<float>::infinity();
      },
      "no finite number");
  refuse(
      [&](auto& all) {
        all[experts + "A.weight"] = Tensor::zeros(DType::f32, {11, 20});
      },
      "expected rows for 6 experts");
  refuse(
      [&](auto& all) {
        all[experts + "A.weight"] = Tensor::zeros(DType::f32, {12, 19});
      },
      "expected 20 inputs and 32 outputs");
  refuse(
      [&](auto& all) {
        all[std::string(kLayer) + "self_attn.x_proj.lora_A.weight"] = Tensor::zeros(DType::f32, {2, 32});
        all[std::string(kLayer) + "self_attn.x_proj.lora_B.weight"] = Tensor::zeros(DType::f32, {32, 2});
      },
      "no matrix \"model.layers.0.self_attn.x_proj.weight\"");
  refuse([&](auto& all) { all[q + "magnitude_vector"] = Tensor::zeros(DType::f32, {32}); },
         "magnitude_vector");
}

TEST_F(AdapterCases, FieldsThatChangeTheFunctionAreRefused) {
  refuse_field("peft_type", "IA3", "\"peft_type\" is \"IA3\", expected \"LORA\"");
  refuse_field("use_dora", true, "\"use_dora\" is true");
  refuse_field("bias", "all", "\"bias\" is \"all\"");
  refuse_field("layer_replication", json::array({json::array({0, 1})}), "\"layer_replication\" is [[0,1]]");
  refuse_field("alora_invocation_tokens", json::array({1}), "alora_invocation_tokens");
  refuse_field("of_next_year", 1, "\"of_next_year\" is 1, expected none");
  refuse_field("r", 0, "\"r\" is 0");
  refuse_field("r", 5, "\"r\" says rank 5");
  refuse_field("lora_alpha", "x", "\"lora_alpha\" is \"x\", expected a number");
  refuse_field("rank_pattern", {{"(", 2}}, "is no regular expression");
  refuse_field("modules_to_save", {"lm_head"}, "modules_to_save names lm_head");
  refuse_field("target_parameters", {"mlp.experts.down_proj"}, "target_parameters says not which");
  const fs::path folder = copy("lora/mixtral-experts");
  fs::rename(adapter_of(folder), folder / "adapter/adapter_model.bin");
  expect_refusal({folder}, "is a pickle");
}

}  // namespace
}  // namespace switchyard::verify_test

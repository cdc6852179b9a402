#include "verify/case.h"

#include <algorithm>
#include <filesystem>

#include "core/error.h"
#include "gguf/gguf_file.h"

namespace switchyard {
namespace {

constexpr std::int32_t kNoTarget = -100;

bool is_gguf(const std::filesystem::path& path) {
  return path.extension() == ".gguf" || GgufFile::is_gguf(path.string());
}

// True for a file in the folder of a case with numbers of the whole model.
bool has_numbers_beside(const std::filesystem::path& path) {
  std::error_code problem;
  return std::filesystem::exists(path.parent_path() / "io.safetensors", problem);
}

// True for a file that is or should be GGUF, unless numbers of the whole model lie beside it, and for a
// folder with one of the files of such cases.
bool is_quantized_case(const std::filesystem::path& path) {
  namespace fs = std::filesystem;
  std::error_code problem;
  if (!fs::is_directory(path, problem)) return is_gguf(path) && !has_numbers_beside(path);
  if (fs::exists(path / "io.safetensors", problem)) return false;
  return fs::exists(path / "expected.safetensors", problem) || fs::exists(path / "tensors.json", problem);
}

}  // namespace

bool is_mesh_key(const std::string& key) {
  return key == "ranks" || key == "num_slices" || key == "expert_parallelism" ||
         key == "custom_mesh_and_rule" ||
         ((key.starts_with("ici_") || key.starts_with("dcn_")) && key.ends_with("_parallelism"));
}

namespace {

// Experts are replayed in the pass of a Hugging Face folder only.
void refuse_routing(const CaseRequest& request) {
  for (const std::string& key : request.overrides) {
    if (key.starts_with("routing_"))
      fail_usage("[verify] {}: {}: experts are replayed for models with io.safetensors only", request.path,
                 key);
  }
}

}  // namespace

CaseReport run_case(const CaseRequest& request) {
  namespace fs = std::filesystem;
  const fs::path path = request.path;
  std::error_code problem;
  try {
    if (!fs::exists(path, problem)) fail_usage("[verify] there is no case {}", request.path);
    const bool few_bits = is_quantized_case(path);
    const bool whole_file = !few_bits && !fs::is_directory(path, problem) && is_gguf(path);
    if (few_bits || !(fs::is_directory(path, problem) || whole_file)) refuse_routing(request);
    if (few_bits) return verify_quantized(request);
    if (request.native)
      fail_usage("[verify] {}: --native is for GGUF files and folders with expected.safetensors",
                 request.path);
    if (fs::is_directory(path, problem)) {
      if (!fs::exists(path / "config.json", problem))
        fail_usage("[verify] {}: expected a folder with config.json and io.safetensors", request.path);
      if (!fs::exists(path / "io.safetensors", problem))
        fail_usage(
            "[verify] {}: expected io.safetensors in it, or expected.safetensors and tensors.json: another "
            "program's numbers, which published folders lack; `switchyard eval {} data_path=FILE` measures "
            "the "
            "model, with --against OTHER beside other weights",
            request.path, request.path);
      return verify_hub_model(request);
    }
    if (whole_file) return verify_hub_model(request);
    if (path.extension() == ".json") return verify_training_run(request);
    if (path.extension() == ".safetensors") return verify_moe_layer(request);
  } catch (const nlohmann::json::exception& wrong) {
    fail_usage("[verify] {}: a value is missing or of the wrong type: {}", request.path, wrong.what());
  }
  fail_usage(
      "[verify] {}: expected a folder with config.json, a GGUF file, a MoE-layer file *.safetensors or a "
      "training run *.json",
      request.path);
}

Config case_config(std::map<std::string, nlohmann::json> keys, const CaseRequest& request, std::int64_t rows,
                   std::int64_t sequence, CaseReport& report) {
  const bool new_mesh = std::any_of(request.overrides.begin(), request.overrides.end(),
                                    [](const std::string& key) { return key.starts_with("ranks="); });
  if (new_mesh) std::erase_if(keys, [](const auto& item) { return is_mesh_key(item.first); });
  keys.try_emplace("dtype", "float32");
  keys.try_emplace("weight_dtype", "float32");
  keys["max_target_length"] = sequence;
  Config config = Config::from_map(keys, request.overrides);
  const double passes = static_cast<double>(config.get_int("gradient_accumulation_steps"));
  const double share = static_cast<double>(rows) / static_cast<double>(config.get_int("ranks")) / passes;
  config.set("per_device_batch_size", share, "the batch of the case");
  if (rows % config.get_int("gradient_accumulation_steps") != 0) {
    fail_usage("[verify] gradient_accumulation_steps={} does not divide the {} rows of {}",
               config.get_int("gradient_accumulation_steps"), rows, request.path);
  }
  if (!request.overrides.empty()) {
    const std::vector<std::string> own = Config::from_map(keys, {}).notices();
    for (const std::string& line : config.notices()) {
      if (std::find(own.begin(), own.end(), line) == own.end()) report.notices.push_back(line);
    }
  }
  return config;
}

Batch case_batch(const std::string& path, const Tensor& inputs, const Tensor& targets, std::int64_t vocab) {
  if (inputs.rank() != 2 || inputs.size() == 0 || inputs.dtype() != DType::i32 ||
      targets.shape() != inputs.shape() || targets.dtype() != DType::i32) {
    fail_usage("[verify] {}: expected inputs and targets of int32 [B,S], got {} {} and {} {}", path,
               name_of(inputs.dtype()), to_string(inputs.shape()), name_of(targets.dtype()),
               to_string(targets.shape()));
  }
  const Shape& shape = inputs.shape();
  Batch batch{inputs.clone(), targets.clone(), Tensor(DType::i32, shape), Tensor(DType::i32, shape),
              Tensor(DType::i32, shape)};
  for (std::int64_t i = 0; i < inputs.size(); ++i) {
    auto& target = batch.targets.data<std::int32_t>()[i];
    const bool counts = target != kNoTarget;
    if (!counts) target = 0;
    for (std::int32_t id : {batch.inputs.data<std::int32_t>()[i], target}) {
      if (id < 0 || id >= vocab)
        fail_usage("[verify] {}: token {} is outside the vocabulary of {}", path, id, vocab);
    }
    batch.inputs_position.data<std::int32_t>()[i] = static_cast<std::int32_t>(i % shape[1]);
    batch.inputs_segmentation.data<std::int32_t>()[i] = 1;
    batch.targets_segmentation.data<std::int32_t>()[i] = counts ? 1 : 0;
  }
  return batch;
}

}  // namespace switchyard

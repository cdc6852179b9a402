#include <algorithm>
#include <filesystem>
#include <set>
#include <string_view>
#include <utility>

#include "checkpoint/block_scaled.h"
#include "checkpoint/int4_weight.h"
#include "checkpoint/mxfp4.h"
#include "checkpoint/safetensors.h"
#include "core/error.h"
#include "core/json_file.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

// Shard file -> the tensors the index places in it.
std::map<std::string, std::set<std::string>> read_index(const std::string& path) {
  const nlohmann::json index = read_json_file(path);
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    fail_usage("[checkpoint] {}: expected an object with \"weight_map\"", path);
  }
  std::map<std::string, std::set<std::string>> shards;
  for (const auto& [name, file] : index["weight_map"].items()) {
    const auto shard = file.is_string() ? file.get<std::string>() : std::string();
    // A name, not a path: an index from elsewhere must not reach outside its folder.
    if (shard.empty() || shard.find('/') != std::string::npos || shard == "." || shard == "..") {
      fail_usage("[checkpoint] {}: tensor {} is placed in {}, expected a file name", path, in_quotes(name),
                 in_quotes(shard));
    }
    shards[shard].insert(name);
  }
  return shards;
}

// Returns the quantization_config of a folder's config.json; an empty object where there is none.
nlohmann::json stated_quantization(const std::string& folder) {
  const fs::path config = fs::path(folder) / "config.json";
  std::error_code ignored;
  if (!fs::exists(config, ignored)) return nlohmann::json::object();
  const nlohmann::json whole = read_json_file(config.string());
  const auto quantization = whole.find("quantization_config");
  return quantization == whole.end() || !quantization->is_object() ? nlohmann::json::object() : *quantization;
}

}  // namespace

void WeightFolder::add(SafetensorsFile only) {
  for (const auto& [name, entry] : only.entries()) shard_of_[name] = 0;
  shards_.push_back(std::move(only));
  set_scales_apart();
  join_all_int4();
  join_mxfp4();
}

WeightFolder WeightFolder::of(SafetensorsFile file) {
  WeightFolder weights;
  weights.path_ = file.path();
  weights.add(std::move(file));
  return weights;
}

WeightFolder WeightFolder::open(const std::string& folder) {
  WeightFolder weights;
  weights.path_ = folder;
  const fs::path root(folder);
  std::error_code ignored;
  fs::path single = root;
  if (fs::is_directory(root, ignored)) {
    single = root / "model.safetensors";
  } else if (!fs::exists(root, ignored)) {
    fail_usage("[checkpoint] {}: no such file or folder", folder);
  }
  if (fs::exists(single, ignored)) {
    weights.add(SafetensorsFile::open(single.string()));
    return weights;
  }
  const fs::path index = root / "model.safetensors.index.json";
  if (!fs::exists(index, ignored)) {
    fail_usage("[checkpoint] {}: expected model.safetensors or model.safetensors.index.json in it{}", folder,
               fs::exists(fs::path(folder) / "pytorch_model.bin")
                   ? "; pytorch_model.bin is not read: save the model as safetensors"
                   : "");
  }
  // A tensor is taken from the file that holds it, whichever of them the index names.
  const auto placed = read_index(index.string());
  for (const auto& [file, names] : placed) {
    const SafetensorsFile& shard =
        weights.shards_.emplace_back(SafetensorsFile::open((root / file).string()));
    for (const auto& [name, entry] : shard.entries()) {
      const auto [at, fresh] = weights.shard_of_.emplace(name, weights.shards_.size() - 1);
      if (!fresh) {
        fail_usage("[checkpoint] {}: holds tensor {}, which {} holds too", shard.path(), in_quotes(name),
                   weights.shards_[at->second].path());
      }
    }
  }
  std::set<std::string_view> listed;
  for (const auto& [file, names] : placed) {
    listed.insert(names.begin(), names.end());
    for (const auto& name : names) {
      if (!weights.shard_of_.contains(name)) {
        fail_usage("[checkpoint] {}: no tensor {}, which the index places there", (root / file).string(),
                   in_quotes(name));
      }
    }
  }
  for (const auto& [name, shard] : weights.shard_of_) {
    if (!listed.contains(name)) {
      fail_usage("[checkpoint] {}: holds tensor {}, which the index does not place there",
                 weights.shards_[shard].path(), in_quotes(name));
    }
  }
  weights.set_scales_apart();
  weights.join_all_int4();
  weights.join_mxfp4();
  return weights;
}

namespace {

// A file with a scale that is no finite number is broken, and a model of it would be no numbers either. Rows
// [begin, end) of the weight.
void check_scales(const std::string& path, const std::string& weight, const SafetensorsFile::Entry& scale,
                  std::int64_t begin, std::int64_t end) {
  const std::optional<std::int64_t> at = infinite_scale(scale, begin, end);
  if (at)
    fail_usage("[checkpoint] {}: tensor {}: the scale of block [{},{}] is no finite number", path,
               in_quotes(block_scale_name(weight)), *at / scale.shape[1], *at % scale.shape[1]);
}
void check_scales(const std::string& path, const std::string& name, const Int4Weight& weight,
                  std::int64_t begin, std::int64_t end) {
  const std::optional<ScalePlace> at = infinite_scale(weight, begin, end);
  if (at)
    fail_usage("[checkpoint] {}: 4-bit weight {}: the scale of group {} of output {} is no finite number",
               path, in_quotes(name), at->group, at->output);
}

// Checks the scales of groups [begin, end) of a stack of MXFP4.
void check_scales(const std::string& path, const std::string& name, const Mxfp4Stack& stack,
                  std::int64_t begin, std::int64_t end) {
  const std::optional<std::int64_t> at = mxfp4_infinite_scale(stack, begin, end);
  if (at)
    fail_usage(
        "[checkpoint] {}: MXFP4 weight {}: the scale of block {} has the exponent 255, which is no number",
        path, in_quotes(name), *at);
}

}  // namespace

void WeightFolder::set_scales_apart() {
  for (const auto& [name, shard] : shard_of_) {
    const SafetensorsFile::Entry& weight = shards_[shard].entries().at(name);
    const std::string scale_name = block_scale_name(name);
    const auto scale = shard_of_.find(scale_name);
    if (weight.dtype != "F8_E4M3" || scale == shard_of_.end()) continue;
    const SafetensorsFile::Entry& scales = shards_[scale->second].entries().at(scale_name);
    if (!is_block_scaled(weight, scales)) {
      fail_usage(
          "[checkpoint] {}: tensor {} is {} {}, expected F32, BF16, F16 or F8_E8M0 with a scale for each {} "
          "x {} of "
          "{}",
          path_, in_quotes(scale_name), scales.dtype, to_string(scales.shape), kScaleBlock, kScaleBlock,
          to_string(weight.shape));
    }
    scale_shard_of_[name] = scale->second;
  }
  for (const auto& [name, shard] : scale_shard_of_) shard_of_.erase(block_scale_name(name));
}

// The modules with a tensor of that ending.
std::vector<std::string> WeightFolder::modules_with(std::string_view ending) const {
  std::vector<std::string> modules;
  for (const auto& [name, shard] : shard_of_) {
    if (name.ends_with(ending)) modules.push_back(name.substr(0, name.size() - ending.size()));
  }
  return modules;
}

// The module's tensors of these endings, the first with its numbers -> MODULE.weight. `weight`: its layout.
void WeightFolder::join_int4(const std::string& module, Int4Weight weight, std::span<const Int4Part> parts) {
  for (const auto& [ending, part, optional] : parts) {
    const auto found = shard_of_.find(module + ending);
    if (found != shard_of_.end())
      weight.*part = entry(found->first);
    else if (!optional)
      fail_usage("[checkpoint] {}: no tensor {}, which belongs to {}", path_, in_quotes(module + ending),
                 in_quotes(module + parts.front().ending));
  }
  if (const std::string problem = int4_problem(weight); !problem.empty())
    fail_usage("[checkpoint] {}: 4-bit weight {}: {}", path_, in_quotes(module), problem);
  const std::string numbers = module + parts.front().ending;
  const std::size_t shard = shard_of_.at(numbers);
  for (const Int4Part& part : parts) shard_of_.erase(module + part.ending);
  if (!shard_of_.emplace(module + ".weight", shard).second)
    fail_usage("[checkpoint] {}: tensor {} is there beside {}", path_, in_quotes(module + ".weight"),
               in_quotes(numbers));
  weight.name_of_numbers = numbers;
  int4_[module + ".weight"] = std::make_shared<const Int4Weight>(std::move(weight));
}

void WeightFolder::join_all_int4() {
  const std::vector<std::string> gptq = modules_with(".qweight"), compressed = modules_with(".weight_packed");
  if (gptq.empty() && compressed.empty()) return;
  const nlohmann::json stated = stated_quantization(path_);
  // AWQ has tensors of the same names as GPTQ.
  if (!stated.contains("quant_method") || is_gptq_form(stated)) {
    Int4Weight layout;
    layout.stored_zero = stated.value("checkpoint_format", nlohmann::json()) == "gptq_v2" ? 8 : 7;
    for (const std::string& module : gptq) join_int4(module, layout, kGptqParts);
  }
  for (const std::string& module : compressed) {
    if (entry(module + ".weight_packed").dtype != "I32") continue;  // another format's
    Int4Weight layout;
    layout.outputs_first = true;
    join_int4(module, layout, kCompressedParts);
  }
}

// NAME_blocks and NAME_scales, both of 8 bits -> NAME.
void WeightFolder::join_mxfp4() {
  constexpr std::string_view kBlocks = "_blocks";
  std::vector<std::string> stacks;
  for (const auto& [name, shard] : shard_of_) {
    if (name.ends_with(kBlocks) && entry(name).dtype == "U8")
      stacks.push_back(name.substr(0, name.size() - kBlocks.size()));
  }
  for (const std::string& stack : stacks) {
    const std::string blocks = stack + "_blocks", scales = stack + "_scales";
    if (!shard_of_.contains(scales))
      fail_usage("[checkpoint] {}: no tensor {}, which belongs to {}", path_, in_quotes(scales),
                 in_quotes(blocks));
    Mxfp4Stack joined{entry(blocks), entry(scales)};
    if (const std::string problem = mxfp4_problem(joined); !problem.empty())
      fail_usage("[checkpoint] {}: MXFP4 weight {}: {}", path_, in_quotes(stack), problem);
    const std::size_t shard = shard_of_.at(blocks);
    shard_of_.erase(blocks);
    shard_of_.erase(scales);
    if (!shard_of_.emplace(stack, shard).second)
      fail_usage("[checkpoint] {}: tensor {} is there beside {}", path_, in_quotes(stack), in_quotes(blocks));
    mxfp4_[stack] = std::make_shared<const Mxfp4Stack>(std::move(joined));
  }
}

std::optional<DType> WeightFolder::packed_stack_dtype(const std::string& name) const {
  return mxfp4_.contains(name) ? std::optional(DType::packed_mxfp4) : std::nullopt;
}
Tensor WeightFolder::take_stack_blocks(const std::string& name, const StackRows& rows) const {
  const auto found = mxfp4_.find(name);
  CHECK(found != mxfp4_.end(), "{} has no blocks", name);
  const Shape& stored = found->second->scales.shape;  // [experts, outputs, groups]
  const std::int64_t of_matrix = stored[1] * stored[2];
  check_scales(path_, name, *found->second, rows.matrix * of_matrix, (rows.matrix + 1) * of_matrix);
  const Tensor blocks = mxfp4_blocks(*found->second, rows);
  shard(name).release_rows(name + "_blocks", rows.matrix, rows.matrix + 1);
  return blocks;
}

std::vector<std::string> WeightFolder::names() const {
  std::vector<std::string> names;
  for (const auto& [name, shard] : shard_of_) names.push_back(name);
  return names;
}

const SafetensorsFile& WeightFolder::shard(const std::string& name) const {
  const auto found = shard_of_.find(name);
  if (found == shard_of_.end()) fail_usage("[checkpoint] {}: no tensor {}", path_, in_quotes(name));
  return shards_[found->second];
}

const SafetensorsFile::Entry& WeightFolder::entry(const std::string& name) const {
  return shard(name).entries().at(name);
}
const SafetensorsFile::Entry& WeightFolder::scales_of(const std::string& weight) const {
  return shards_[scale_shard_of_.at(weight)].entries().at(block_scale_name(weight));
}

Shape WeightFolder::shape(const std::string& name) const {
  if (const auto found = int4_.find(name); found != int4_.end()) return found->second->shape();
  if (const auto found = mxfp4_.find(name); found != mxfp4_.end()) return found->second->shape();
  return entry(name).shape;
}
std::string WeightFolder::dtype(const std::string& name) const {
  if (int4_.contains(name)) return "F32";
  if (mxfp4_.contains(name)) return "BF16";
  return scale_shard_of_.contains(name) ? "BF16" : entry(name).dtype;
}
Tensor WeightFolder::read(const std::string& name) const {
  const bool made = int4_.contains(name) || mxfp4_.contains(name) || scale_shard_of_.contains(name);
  return made ? rows_of(name, 0, shape(name)[0], DType::bf16) : shard(name).read(name);
}
Tensor WeightFolder::take_rows(const std::string& name, std::int64_t begin, std::int64_t end) const {
  return rows_of(name, begin, end, DType::bf16);
}
Tensor WeightFolder::take_values(const std::string& name, std::int64_t begin, std::int64_t end) const {
  return rows_of(name, begin, end, DType::f32);
}

// `scaled`: the type of 8-bit weights with scales; the others have that of the file.
Tensor WeightFolder::rows_of(const std::string& name, std::int64_t begin, std::int64_t end,
                             DType scaled) const {
  // A row of GPTQ's is a column in the file: its pages have other rows too, and stay.
  if (const auto found = int4_.find(name); found != int4_.end()) {
    check_scales(path_, name, *found->second, begin, end);
    return int4_rows(*found->second, begin, end);
  }
  const SafetensorsFile& file = shard(name);
  if (const auto found = mxfp4_.find(name); found != mxfp4_.end()) {
    const Shape& stored = found->second->scales.shape;
    check_scales(path_, name, *found->second, begin * stored[1] * stored[2], end * stored[1] * stored[2]);
    const Tensor matrices = mxfp4_matrices(*found->second, begin, end, scaled);
    file.release_rows(name + "_blocks", begin, end);
    return matrices;
  }
  if (scale_shard_of_.contains(name)) check_scales(path_, name, scales_of(name), begin, end);
  const Tensor rows = scale_shard_of_.contains(name)
                          ? block_scaled_rows(entry(name), scales_of(name), begin, end, scaled)
                          : file.read_rows(name, begin, end);
  file.release_rows(name, begin, end);
  return rows;
}

std::optional<DType> WeightFolder::packed_dtype(const std::string& name) const {
  if (const auto found = int4_.find(name); found != int4_.end())
    return is_whole_blocks(*found->second) ? std::optional(DType::packed_int4) : std::nullopt;
  const bool fp8 = scale_shard_of_.contains(name) && holds_packed_fp8(entry(name).shape);
  return fp8 ? std::optional(DType::packed_fp8) : std::nullopt;
}

Tensor WeightFolder::take_blocks(const std::string& name) const {
  CHECK(packed_dtype(name), "{} has no blocks", name);
  const SafetensorsFile& file = shard(name);
  if (const auto found = int4_.find(name); found != int4_.end()) {
    check_scales(path_, name, *found->second, 0, found->second->outputs());
    const Tensor blocks = int4_blocks(*found->second);
    file.release(found->second->name_of_numbers);
    return blocks;
  }
  if (has_nan(entry(name)))
    fail_usage(
        "[checkpoint] {}: tensor {} has a NaN, which fp8 weights cannot hold: expected weight_format=dense",
        path_, in_quotes(name));
  check_scales(path_, name, scales_of(name), 0, entry(name).shape[0]);
  const Tensor blocks = block_scaled_blocks(entry(name), scales_of(name));
  file.release(name);
  return blocks;
}

}  // namespace switchyard

#include <algorithm>
#include <filesystem>
#include <set>

#include "checkpoint/block_scaled.h"
#include "checkpoint/json_file.h"
#include "checkpoint/safetensors.h"
#include "core/error.h"

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

}  // namespace

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
    weights.shards_.push_back(SafetensorsFile::open(single.string()));
    for (const auto& [name, entry] : weights.shards_[0].entries()) weights.shard_of_[name] = 0;
    weights.set_scales_apart();
    return weights;
  }
  const fs::path index = root / "model.safetensors.index.json";
  if (!fs::exists(index, ignored)) {
    fail_usage("[checkpoint] {}: expected model.safetensors or model.safetensors.index.json in it", folder);
  }
  for (const auto& [file, names] : read_index(index.string())) {
    const SafetensorsFile& shard =
        weights.shards_.emplace_back(SafetensorsFile::open((root / file).string()));
    for (const auto& name : names) {
      if (!shard.contains(name)) {
        fail_usage("[checkpoint] {}: no tensor {}, which the index places there", shard.path(),
                   in_quotes(name));
      }
      weights.shard_of_[name] = weights.shards_.size() - 1;
    }
    for (const auto& [name, entry] : shard.entries()) {
      if (!names.contains(name)) {
        fail_usage("[checkpoint] {}: holds tensor {}, which the index does not place there", shard.path(),
                   in_quotes(name));
      }
    }
  }
  weights.set_scales_apart();
  return weights;
}

void WeightFolder::set_scales_apart() {
  for (const auto& [name, shard] : shard_of_) {
    const SafetensorsFile::Entry& weight = shards_[shard].entries().at(name);
    const std::string scale_name = block_scale_name(name);
    const auto scale = shard_of_.find(scale_name);
    if (weight.dtype != "F8_E4M3" || scale == shard_of_.end()) continue;
    const SafetensorsFile::Entry& scales = shards_[scale->second].entries().at(scale_name);
    if (!is_block_scaled(weight, scales)) {
      fail_usage("[checkpoint] {}: tensor {} is {} {}, expected F32 with a scale for each {} x {} of {}",
                 path_, in_quotes(scale_name), scales.dtype, to_string(scales.shape), kScaleBlock,
                 kScaleBlock, to_string(weight.shape));
    }
    scale_shard_of_[name] = scale->second;
  }
  for (const auto& [name, shard] : scale_shard_of_) shard_of_.erase(block_scale_name(name));
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

Shape WeightFolder::shape(const std::string& name) const {
  return shard(name).entries().at(name).shape;
}
std::string WeightFolder::dtype(const std::string& name) const {
  return scale_shard_of_.contains(name) ? "BF16" : shard(name).entries().at(name).dtype;
}
Tensor WeightFolder::read(const std::string& name) const {
  const auto scale = scale_shard_of_.find(name);
  if (scale == scale_shard_of_.end()) return shard(name).read(name);
  const SafetensorsFile::Entry& weight = shard(name).entries().at(name);
  return block_scaled_rows(weight, shards_[scale->second].entries().at(block_scale_name(name)), 0,
                           weight.shape[0]);
}
Tensor WeightFolder::take_rows(const std::string& name, std::int64_t begin, std::int64_t end) const {
  const SafetensorsFile& file = shard(name);
  const auto scale = scale_shard_of_.find(name);
  const Tensor rows =
      scale == scale_shard_of_.end()
          ? file.read_rows(name, begin, end)
          : block_scaled_rows(file.entries().at(name),
                              shards_[scale->second].entries().at(block_scale_name(name)), begin, end);
  file.release_rows(name, begin, end);
  return rows;
}

}  // namespace switchyard

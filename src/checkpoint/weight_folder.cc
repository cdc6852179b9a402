#include <algorithm>
#include <filesystem>
#include <set>

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
  return weights;
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

const Shape& WeightFolder::shape(const std::string& name) const {
  return shard(name).entries().at(name).shape;
}
const std::string& WeightFolder::dtype(const std::string& name) const {
  return shard(name).entries().at(name).dtype;
}
Tensor WeightFolder::read(const std::string& name) const {
  return shard(name).read(name);
}

}  // namespace switchyard

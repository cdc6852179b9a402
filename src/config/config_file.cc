#include "config/config_file.h"

#include <dlfcn.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#include "config/declaration.h"
#include "config/value.h"
#include "config/variables.h"
#include "core/error.h"

namespace switchyard {
namespace {

constexpr std::uintmax_t largest_file_bytes = std::uintmax_t{1} << 20;
// Aliases let a small file expand to a huge tree; no real setting comes close to this limit.
constexpr int largest_value_nodes = 100000;

// Tags would make something else of a value, such as a variable of the environment.
void refuse_tag(const YAML::Node& node) {
  const std::string& tag = node.Tag();
  if (tag.size() > 1 && tag != "?" && !tag.starts_with("tag:yaml.org,2002:"))
    fail_usage("[config] a value has the tag {}, which is not known here: expected a plain value", tag);
}

using Entries = std::vector<std::pair<std::string, YAML::Node>>;

// The entries of a map. A merge key (<<: a map, or a list of maps) adds those that the map itself lacks; the
// first of several maps wins. A key that is given twice is an error.
Entries entries_of(const YAML::Node& map, int& budget) {
  if (--budget < 0) fail_usage("[config] a value has more than {} parts", largest_value_nodes);
  Entries entries;
  std::set<std::string> seen;
  std::vector<YAML::Node> merged;
  for (const auto& item : map) {
    if (!item.first.IsScalar()) fail_usage("[config] a key must be a word");
    const std::string& key = item.first.Scalar();
    if (!seen.insert(key).second) fail_usage("[config] a map gives {} twice", key);
    if (key != "<<" || item.first.Tag() == "!") {
      entries.emplace_back(key, item.second);
    } else if (item.second.IsSequence()) {
      for (const YAML::Node& part : item.second) merged.push_back(part);
    } else {
      merged.push_back(item.second);
    }
  }
  for (const YAML::Node& part : merged) {
    if (!part.IsMap()) fail_usage("[config] <<: expected a map or a list of maps to merge");
    for (auto& [key, value] : entries_of(part, budget)) {
      if (seen.insert(key).second) entries.emplace_back(key, value);
    }
  }
  return entries;
}

nlohmann::json convert(const YAML::Node& node, int& budget) {
  if (--budget < 0) fail_usage("[config] a value has more than {} parts", largest_value_nodes);
  refuse_tag(node);
  if (node.IsScalar()) return node.Scalar();
  if (node.IsSequence()) {
    nlohmann::json list = nlohmann::json::array();
    for (const YAML::Node& item : node) list.push_back(convert(item, budget));
    return list;
  }
  if (node.IsMap()) {
    nlohmann::json map = nlohmann::json::object();
    for (const auto& [key, value] : entries_of(node, budget)) map[key] = convert(value, budget);
    return map;
  }
  return nullptr;
}

// The base_config of a file's keys; empty when it inherits from none.
std::string base_of(const UntypedKeys& keys, const std::string& name) {
  for (const auto& [key, value] : keys) {
    if (key != "base_config" || value.is_null()) continue;
    if (!value.is_string()) fail_usage("[config] {}: base_config: expected the path of a file", name);
    const std::string base =
        value_text(filled_in(key, value, name, [&](const std::string& other) -> nlohmann::json {
          fail_usage("[config] {}: base_config: {} is not known before the files are read", name, other);
        }));
    return base == "None" || base == "null" || base == "~" ? "" : base;
  }
  return {};
}

// Error(usage) for a missing file, a folder, and a model.
void require_config_file(const std::filesystem::path& file) {
  std::error_code problem;
  if (std::filesystem::is_directory(file, problem))
    fail_usage("[config] there is no file {}: it is a folder; expected CONFIG.yml", file.string());
  if (!std::filesystem::is_regular_file(file, problem))
    fail_usage("[config] there is no file {}", file.string());
  std::string beginning(4, '\0');
  std::ifstream(file, std::ios::binary).read(beginning.data(), 4);
  if (beginning == "GGUF")
    fail_usage("[config] {}: a GGUF file, which holds a model; expected CONFIG.yml", file.string());
}

// The program is in PREFIX/bin, the library in PREFIX/lib or PREFIX/lib/MACHINE; either finds its configs in
// PREFIX/share/switchyard/configs. Nothing where that folder does not exist, as in a build folder.
std::optional<std::filesystem::path> installed_configs() {
  Dl_info own{};
  if (::dladdr(reinterpret_cast<const void*>(&config_folder), &own) == 0 || own.dli_fname == nullptr)
    return {};
  std::error_code problem;
  // For a program dladdr() gives the name that it was called by, not its path.
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", problem);
  const std::string file = own.dli_fname;
  const bool library = file.find(".so") != std::string::npos;
  std::filesystem::path folder =
      std::filesystem::canonical(library ? file : program.string(), problem).parent_path();
  if (problem) return {};
  for (int up = 0; up < 2 && folder.has_relative_path(); ++up) {
    folder = folder.parent_path();
    const std::filesystem::path configs = folder / "share/switchyard/configs";
    if (std::filesystem::is_directory(configs, problem)) return configs;
  }
  return {};
}

}  // namespace

nlohmann::json yaml_to_json(const YAML::Node& node) {
  int budget = largest_value_nodes;
  return convert(node, budget);
}

UntypedKeys parse_config_text(const std::string& text, const std::string& name) {
  std::vector<YAML::Node> documents;
  try {
    documents = YAML::LoadAll(text);
  } catch (const YAML::Exception& problem) {
    fail_usage("[config] {} is not valid YAML: {} in line {}", name, problem.msg, problem.mark.line + 1);
  }
  std::erase_if(documents, [](const YAML::Node& document) { return document.IsNull(); });
  if (documents.size() > 1) {
    fail_usage("[config] {}: expected one document, got {}: the second begins with --- before line {}", name,
               documents.size(), documents[1].Mark().line + 1);
  }
  UntypedKeys keys;
  if (documents.empty()) return keys;
  if (!documents[0].IsMap()) fail_usage("[config] {}: expected lines of `key: value`", name);
  std::string at;
  try {
    int budget = largest_value_nodes;
    for (const auto& [key, value] : entries_of(documents[0], budget)) {
      at = key;
      keys.emplace_back(key, yaml_to_json(value));
    }
  } catch (const Error& error) {
    fail_usage("{} ({}{})", error.what(), name, at.empty() ? "" : ", " + at);
  }
  return keys;
}

namespace {

// Groups of keys become keys.
UntypedKeys without_groups(const UntypedKeys& keys, const std::string& file) {
  UntypedKeys flat;
  const auto add = [&](const std::string& name, const nlohmann::json& value) {
    const auto known = std::ranges::find(flat, name, &UntypedKeys::value_type::first);
    if (known != flat.end() && known->second != value)
      fail_usage("[config] {}: {} is given twice, beside its group and in it", file, name);
    if (known == flat.end()) flat.emplace_back(name, value);
  };
  for (const auto& [name, value] : keys) {
    if (!is_group(name) || !value.is_object()) {
      if (!is_group(name)) add(without_group(name), value);
      continue;
    }
    for (const auto& [member, of_member] : value.items())
      add(without_group(fmt::format("{}.{}", name, member)), of_member);
  }
  return flat;
}

}  // namespace

UntypedKeys read_config_file(const std::filesystem::path& file) {
  std::error_code problem;
  require_config_file(file);
  if (std::filesystem::file_size(file, problem) > largest_file_bytes || problem) {
    fail_usage("[config] {}: expected a config file of at most {} bytes", file.string(), largest_file_bytes);
  }
  std::ifstream stream(file, std::ios::binary);
  std::ostringstream text;
  if (!stream || !(text << stream.rdbuf()).good()) {
    if (!stream || std::filesystem::file_size(file, problem) > 0)
      fail_usage("[config] cannot read {}", file.string());
  }
  return without_groups(parse_config_text(text.str(), file.string()), file.string());
}

std::vector<ConfigLayer> read_config_layers(const std::filesystem::path& file, const std::string& source) {
  std::vector<ConfigLayer> layers;
  std::filesystem::path next = file;
  std::string name = source;
  while (!next.empty()) {
    std::error_code problem;
    for (const ConfigLayer& above : layers) {
      if (std::filesystem::equivalent(above.file, next, problem))
        fail_usage("[config] {}: base_config={} leads back to {}", layers.back().source, name, above.source);
    }
    layers.push_back({next, name, read_config_file(next)});
    const std::string base = base_of(layers.back().keys, name);
    layers.back().inherits = !base.empty();
    if (base.empty()) break;
    next = layers.back().file.parent_path() / base;
    if (!std::filesystem::is_regular_file(next, problem)) next = config_of_ours(base);
    if (next.empty()) fail_usage("[config] {}: base_config={}: there is no such file", name, base);
    name = base;
  }
  std::reverse(layers.begin(), layers.end());
  return layers;
}

std::filesystem::path config_of_ours(const std::filesystem::path& path) {
  const std::filesystem::path name = path.filename();
  std::error_code problem;
  for (const char* folder : {"", "models", "examples"}) {
    const std::filesystem::path ours = config_folder() / folder / name;
    if (!name.empty() && std::filesystem::is_regular_file(ours, problem)) return ours;
  }
  return {};
}

bool is_mistyped(const std::filesystem::path& given, const std::filesystem::path& ours) {
  std::filesystem::path theirs = given.parent_path(),
                        right = "configs" / ours.parent_path().lexically_relative(config_folder());
  if (right.filename() == ".") right = right.parent_path();
  for (; !theirs.filename().empty() && !right.empty();
       theirs = theirs.parent_path(), right = right.parent_path()) {
    const std::vector<std::string> meant = {right.filename().string()};
    if (theirs.filename() != meant[0]) return !nearest_of(theirs.filename().string(), meant).empty();
  }
  return false;
}

std::filesystem::path nearest_path(const std::filesystem::path& path) {
  constexpr std::size_t kFewestLetters = 4, kMostNames = 4096;
  std::filesystem::path found;
  std::error_code problem;
  for (const std::filesystem::path& part : path) {
    if (part.empty() || std::filesystem::exists(found / part, problem)) {
      found /= part;
      continue;
    }
    std::vector<std::string> names;
    const std::filesystem::path folder = found.empty() ? "." : found;
    for (const auto& item : std::filesystem::directory_iterator(folder, problem)) {
      if (names.size() < kMostNames) names.push_back(item.path().filename().string());
    }
    std::ranges::sort(names);
    const std::string near = part.string().size() < kFewestLetters ? "" : nearest_of(part.string(), names);
    if (near.empty()) return {};
    found /= near;
  }
  return found;
}

std::filesystem::path config_folder() {
  if (const char* folder = std::getenv("SWITCHYARD_CONFIG_DIR"); folder != nullptr && *folder != '\0')
    return folder;
  static const std::filesystem::path found = installed_configs().value_or(SWITCHYARD_CONFIG_DIR);
  return found;
}

std::vector<std::string> config_names(const std::string& kind) {
  std::vector<std::string> names;
  std::error_code problem;
  for (const auto& item : std::filesystem::directory_iterator(config_folder() / kind, problem)) {
    if (item.path().extension() == ".yml") names.push_back(item.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace switchyard

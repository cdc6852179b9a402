// Reading the YAML files of configs/ and of the user.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace YAML {
class Node;
}

namespace switchyard {

// Keys of a file in their order, values untyped (strings, nested arrays of strings, null).
using UntypedKeys = std::vector<std::pair<std::string, nlohmann::json>>;

// A YAML value as strings, nested arrays and objects of strings, and null.
nlohmann::json yaml_to_json(const YAML::Node& node);

// `text` is a YAML map of keys. Throws Error(usage), one line with `name` and the place, when it does not
// parse, is not a map, or gives a key twice.
UntypedKeys parse_config_text(const std::string& text, const std::string& name);

// The same from a file, at most 1 MiB. Throws Error(usage) when it cannot be read.
UntypedKeys read_config_file(const std::filesystem::path& file);

// A config file, or one that it inherits from.
struct ConfigLayer {
  std::filesystem::path file;
  std::string source;  // what messages call it
  UntypedKeys keys;
  bool inherits = false;  // it gives base_config
};

// The file, called `source`, and those below it: the one its base_config names, and so on, lowest first. A
// base_config is a path from the folder of its file; where there is none, one of ours by its last part.
// Throws Error(usage) for a file that is not there, and where a file inherits from itself.
std::vector<ConfigLayer> read_config_layers(const std::filesystem::path& file, const std::string& source);

// The file of configs/, configs/models or configs/examples with the last part of `path` as its name; empty
// where there is none.
std::filesystem::path config_of_ours(const std::filesystem::path& path);

// The folder with base.yml, models/ and mesh/: $SWITCHYARD_CONFIG_DIR, or the one of the source tree.
std::filesystem::path config_folder();

// Names (without .yml) of the files in configs/`kind`, sorted; kind is "models" or "mesh".
std::vector<std::string> config_names(const std::string& kind);

}  // namespace switchyard

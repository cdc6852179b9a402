// Reads the YAML files of configs/ and of the user.
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

// The keys of a file in order, with untyped values (strings, nested arrays of strings, null).
using UntypedKeys = std::vector<std::pair<std::string, nlohmann::json>>;

// Converts a YAML value to strings, nested arrays and objects of strings, and null.
nlohmann::json yaml_to_json(const YAML::Node& node);

// Parses `text`, a YAML map of keys. Throws Error(usage), one line with `name` and the place, when it does
// not parse, is not a map, or gives a key twice.
UntypedKeys parse_config_text(const std::string& text, const std::string& name);

// Reads and parses a file of at most 1 MiB. Throws Error(usage) when it cannot be read.
UntypedKeys read_config_file(const std::filesystem::path& file);

// A config file, or a file that it inherits from.
struct ConfigLayer {
  std::filesystem::path file;
  std::string source;  // the file's name in messages
  UntypedKeys keys;
  bool inherits = false;  // the file sets base_config
};

// Reads the file, called `source`, and the files it inherits from (the one that its base_config names, and so
// on), lowest first. base_config is a path from its file's folder or, where that path does not exist, names
// one of our files by its last part. Throws Error(usage) for a missing file, and for inheritance in a circle.
std::vector<ConfigLayer> read_config_layers(const std::filesystem::path& file, const std::string& source);

// The file in configs/, configs/models or configs/examples that is
// named like the last part of `path`; empty when there is none.
std::filesystem::path config_of_ours(const std::filesystem::path& path);

// True when the folders of `given`, which does not exist, are nearly those of `ours`, such as
// configs/exmaples: then the path was mistyped. False for folders of another project, and without any.
bool is_mistyped(const std::filesystem::path& given, const std::filesystem::path& ours);

// The path that exists and whose parts are those of `path`, or the nearest names in their folders; empty when
// a part has none near.
std::filesystem::path nearest_path(const std::filesystem::path& path);

// The folder with base.yml, models/ and mesh/: $SWITCHYARD_CONFIG_DIR, or that in the source tree.
std::filesystem::path config_folder();

// Names (without .yml) of the files in configs/`kind`, sorted; kind is "models" or "mesh".
std::vector<std::string> config_names(const std::string& kind);

}  // namespace switchyard

// Command-line options that commands with a config share.
#pragma once

#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace switchyard {

struct Options {
  bool help = false;                          // --help, -h
  std::string json_file;                      // --json FILE; "" without
  std::set<std::string> flags;                // flags of the command that were given
  std::map<std::string, std::string> values;  // options of the command that were given, with their values
  std::map<std::string, std::vector<std::string>> lists;  // the same; of an option that was given again, all
  std::vector<std::string> settings;                      // CONFIG.yml and key=value, in order
};

// Error(usage) that names `command` for an unknown option, for an option without its value, and for a --json
// FILE that cannot be written. `writes_json` is false for a command without --json.
Options parse_options(const std::string& command, const std::set<std::string>& flags,
                      std::span<const std::string> args, const std::set<std::string>& with_values = {},
                      bool writes_json = true);

// The number in option `name`. Error(usage) for other text, and for a number outside [least, most].
std::int64_t number_option(const std::string& command, const Options& options, const std::string& name,
                           std::int64_t without, std::int64_t least, std::int64_t most);

// Error(usage) when `file`, given to --json, is in no writable
// folder, so that a long command fails early. Accepts "" (no file).
void require_writable(const std::string& command, const std::string& file);

}  // namespace switchyard

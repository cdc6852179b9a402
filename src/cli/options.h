// What commands that look at a config have in common on the command line.
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
  std::set<std::string> flags;                // of the command's own, those given
  std::map<std::string, std::string> values;  // of its options with a value, those given
  std::vector<std::string> settings;          // CONFIG.yml and key=value, in order
};

// Error(usage) that names `command` for an option it does not have, for one without its value, and for a
// --json FILE that cannot be written. A command that writes none has `writes_json` false.
Options parse_options(const std::string& command, const std::set<std::string>& flags,
                      std::span<const std::string> args, const std::set<std::string>& with_values = {},
                      bool writes_json = true);

// A number that an option gives. Error(usage) for another text, and outside [least, most].
std::int64_t number_option(const std::string& command, const Options& options, const std::string& name,
                           std::int64_t without, std::int64_t least, std::int64_t most);

// Error(usage) where `file`, of --json, is in no folder that can be written: before what takes long. None is
// "".
void require_writable(const std::string& command, const std::string& file);

}  // namespace switchyard

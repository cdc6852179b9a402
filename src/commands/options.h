// The options of all commands: what they are, and how they are read.
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

// A command takes these. --help is everyone's.
struct CommandOptions {
  std::set<std::string> flags = {};
  // Options with a value, and what it is: FILE, FOLDER, PATH (either), words with | between, or else a name.
  std::map<std::string, std::string> with_values = {};
  bool writes_json = true;  // --json FILE
  bool takes_keys = true;   // key=value of the config
  bool takes_files = true;
  std::vector<std::string> words = {};  // what else may stand without a dash; NAME= for keys of its own
};

// By the command's name.
const std::map<std::string, CommandOptions>& command_options();

// Reads what `command` takes. Error(usage) that names `command` for an unknown option, for an option without
// its value, and for a --json FILE that cannot be written.
Options parse_options(const std::string& command, std::span<const std::string> args);

// The number in option `name`. Error(usage) for other text, and for a number outside [least, most].
std::int64_t number_option(const std::string& command, const Options& options, const std::string& name,
                           std::int64_t without, std::int64_t least, std::int64_t most);

// Error(usage) when `file`, given to --json, is in no writable
// folder, so that a long command fails early. Accepts "" (no file).
void require_writable(const std::string& command, const std::string& file);

}  // namespace switchyard

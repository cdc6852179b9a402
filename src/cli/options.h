// What commands that look at a config have in common on the command line.
#pragma once

#include <set>
#include <span>
#include <string>
#include <vector>

namespace switchyard {

struct Options {
  bool help = false;                  // --help, -h
  std::string json_file;              // --json FILE; "" without
  std::set<std::string> flags;        // of the command's own, those given
  std::vector<std::string> settings;  // CONFIG.yml and key=value, in order
};

// Error(usage) that names `command` for an option it does not have, and for --json without a file.
Options parse_options(const std::string& command, const std::set<std::string>& flags,
                      std::span<const std::string> args);

// Error(usage) where `file`, of --json, is in no folder that can be written: before what takes long. None is
// "".
void require_writable(const std::string& command, const std::string& file);

}  // namespace switchyard

#include "commands/options.h"

#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <limits>

#include "config/meant_keys.h"
#include "core/error.h"

namespace switchyard {

Options parse_options(const std::string& command, const std::set<std::string>& flags,
                      std::span<const std::string> args, const std::set<std::string>& with_values,
                      bool writes_json) {
  Options options;
  for (std::size_t i = 0; i < args.size(); ++i) {
    if (args[i] == "--help" || args[i] == "-h") {
      options.help = true;
    } else if (args[i] == "--json" && writes_json) {
      if (i + 1 == args.size()) fail_usage("[{}] --json needs the name of a file", command);
      options.json_file = args[++i];
    } else if (flags.contains(args[i])) {
      options.flags.insert(args[i]);
    } else if (with_values.contains(args[i])) {
      if (i + 1 == args.size()) fail_usage("[{}] {} needs a value", command, args[i]);
      options.values[args[i]] = args[i + 1];
      options.lists[args[i]].push_back(args[i + 1]);
      ++i;
    } else if (const std::string setting = args[i].starts_with("-") ? setting_meant(args, i) : "";
               !setting.empty()) {
      fail_usage("[{}] unknown option {}; write {}", command, args[i], setting);
    } else if (args[i].starts_with("-")) {
      std::string known;
      for (const std::string& flag : flags) known += flag + ", ";
      for (const std::string& name : with_values) known += name + " VALUE, ";
      fail_usage("[{}] unknown option {}; the options are {}{}--help", command, args[i], known,
                 writes_json ? "--json FILE, " : "");
    } else {
      options.settings.push_back(args[i]);
    }
  }
  if (!options.help) require_writable(command, options.json_file);
  return options;
}

std::int64_t number_option(const std::string& command, const Options& options, const std::string& name,
                           std::int64_t without, std::int64_t least, std::int64_t most) {
  const auto given = options.values.find(name);
  if (given == options.values.end()) return without;
  const std::string& text = given->second;
  std::int64_t value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc() || end != text.data() + text.size() || value < least || value > most) {
    fail_usage("[{}] {}: expected a number of {} {}, got {}", command, name, least,
               most == std::numeric_limits<std::int64_t>::max() ? "or more" : fmt::format("to {}", most),
               text);
  }
  return value;
}

void require_writable(const std::string& command, const std::string& file) {
  if (file.empty()) return;
  std::error_code problem;
  if (std::filesystem::is_other(file, problem) && ::access(file.c_str(), W_OK) == 0)
    return;  // a pipe, a device
  const auto folder = std::filesystem::path(file).parent_path();
  const std::string name = folder.empty() ? "." : folder.string();
  if (::access(name.c_str(), W_OK) != 0)
    fail_usage("[{}] --json {}: expected a folder that can be written, got {} ({})", command, file, name,
               std::strerror(errno));
}

}  // namespace switchyard

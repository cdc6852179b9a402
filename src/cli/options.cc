#include "cli/options.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "core/error.h"

namespace switchyard {

Options parse_options(const std::string& command, const std::set<std::string>& flags,
                      std::span<const std::string> args) {
  Options options;
  for (std::size_t i = 0; i < args.size(); ++i) {
    if (args[i] == "--help" || args[i] == "-h") {
      options.help = true;
    } else if (args[i] == "--json") {
      if (i + 1 == args.size()) fail_usage("[{}] --json needs the name of a file", command);
      options.json_file = args[++i];
    } else if (flags.contains(args[i])) {
      options.flags.insert(args[i]);
    } else if (args[i].starts_with("-")) {
      std::string known;
      for (const std::string& flag : flags) known += flag + ", ";
      fail_usage("[{}] unknown option {}; the options are {}--json FILE and --help", command, args[i], known);
    } else {
      options.settings.push_back(args[i]);
    }
  }
  return options;
}

void require_writable(const std::string& command, const std::string& file) {
  if (file.empty()) return;
  const auto folder = std::filesystem::path(file).parent_path();
  const std::string name = folder.empty() ? "." : folder.string();
  if (::access(name.c_str(), W_OK) != 0)
    fail_usage("[{}] --json {}: expected a folder that can be written, got {} ({})", command, file, name,
               std::strerror(errno));
}

}  // namespace switchyard

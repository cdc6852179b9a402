#include "cli/config_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <vector>

#include "cli/options.h"
#include "config/config.h"
#include "config/declaration.h"
#include "config/value.h"
#include "core/error.h"
#include "metrics/atomic_file.h"

namespace switchyard {
namespace {

constexpr const char* kConfigHelp = R"(switchyard config [--list] [--json FILE] [CONFIG.yml] [key=value ...]

Shows every setting that a command line gives, with its value and where that came from.

  --list       the table of all keys: type, default, status (active, inert, planned, derived), help
  --json FILE  write it to FILE as JSON instead

Example:
  switchyard config model_name=mixtral-8x7b per_device_batch_size=1
)";

nlohmann::json declarations() {
  nlohmann::json keys = nlohmann::json::array();
  for (const KeyDeclaration& key : all_keys()) {
    keys.push_back({{"name", key.name},
                    {"type", type_name(key)},
                    {"default", key.default_value},
                    {"status", status_name(key.status)},
                    {"expected", expected_value(key)},
                    {"help", key.help}});
  }
  return {{"version", SWITCHYARD_VERSION}, {"keys", keys}};
}

void print_declarations() {
  std::size_t name_width = 0;
  for (const KeyDeclaration& key : all_keys()) name_width = std::max(name_width, key.name.size());
  for (const KeyDeclaration& key : all_keys()) {
    const std::string value = value_text(key.default_value);
    fmt::print("{:<{}}  {:<8}{:<16}  {:<12}  {}", key.name, name_width, status_name(key.status),
               type_name(key), value.empty() ? "''" : value, key.help);
    if (!key.check.choices.empty()) fmt::print(" ({})", expected_value(key));
    fmt::print("\n");
  }
}

void write_json(const nlohmann::json& value, const std::string& file) {
  write_file_atomic(file, value.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

}  // namespace

int config_command(std::span<const std::string> args) {
  const Options options = parse_options("config", {"--list"}, args);
  const bool list = options.flags.contains("--list");
  if (list && !options.settings.empty()) {
    fail_usage("[config] --list shows declarations, which do not depend on {}", options.settings[0]);
  }
  if (options.help) {
    fmt::print("{}", kConfigHelp);
    return 0;
  }
  if (list) {
    if (options.json_file.empty())
      print_declarations();
    else
      write_json(declarations(), options.json_file);
    return 0;
  }
  const Config config = Config::from_args(options.settings);
  for (const std::string& line : config.notices()) fmt::print(stderr, "{}\n", line);
  if (options.json_file.empty())
    fmt::print("{}", config.describe());
  else
    write_json({{"version", SWITCHYARD_VERSION}, {"config", config.resolved()}}, options.json_file);
  return 0;
}

}  // namespace switchyard

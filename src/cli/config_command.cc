#include "cli/config_command.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "cli/help_page.h"
#include "commands/options.h"
#include "config/config.h"
#include "config/config_file.h"
#include "config/declaration.h"
#include "config/value.h"
#include "core/error.h"
#include "core/json_file.h"
#include "engine/command_config.h"
#include "metrics/atomic_file.h"

namespace switchyard {
namespace {

constexpr const char* kConfigHelp =
    R"(switchyard config [CONFIG.yml] [key=value ...] [--changed] [--json FILE]
switchyard config --list [WORD ...] [--json FILE]
switchyard config --template

Shows every setting that a command line gives, with its value and where that came from.

  --changed      only the settings that a run without any has otherwise
  --list WORD …  the table of keys by what they are about: status, type, default, help; with words only the keys that
                 have all of them in name or help
  --template     a commented config of a small MoE model of your own, which trains as it stands
  --json FILE    write settings or table to FILE as JSON instead

Keys may also come from the environment (M_STEPS=77); values may have ${oc.env:NAME}, ${oc.env:NAME,else} and ${key}.

The status of a key:
  active         it does what its help says
  inert          it changes nothing here; accepted, and named in one line at start
  planned        not built yet: refused unless at its default
  derived        computed from the keys that its help names: refused unless None

Examples:
  switchyard config model_name=mixtral-8x7b per_device_batch_size=1 --changed
  switchyard config --list shared expert
  switchyard config --template > my-moe.yml && switchyard train my-moe.yml steps=20
)";

constexpr const char* kTemplate = "my-moe.yml";  // of configs/examples

std::string in_lower_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char letter) { return letter < 0x80 ? std::tolower(letter) : letter; });
  return text;
}

// Keys with all the words in their name or help.
std::vector<const KeyDeclaration*> keys_with(const std::vector<std::string>& words) {
  std::vector<const KeyDeclaration*> keys;
  for (const KeyDeclaration& key : all_keys()) {
    const std::string text = in_lower_case(key.name + " " + key.help);
    if (std::all_of(words.begin(), words.end(), [&](const std::string& word) {
          return text.find(in_lower_case(word)) != std::string::npos;
        }))
      keys.push_back(&key);
  }
  if (keys.empty())
    fail_usage("[config] --list: expected words of a key's name or help, no key has {}",
               fmt::join(words, ", "));
  return keys;
}

nlohmann::json declarations(const std::vector<const KeyDeclaration*>& shown) {
  nlohmann::json keys = nlohmann::json::array();
  for (const KeyDeclaration* key : shown) {
    keys.push_back({{"name", key->name},
                    {"type", type_name(*key)},
                    {"default", key->default_value},
                    {"status", status_name(key->status)},
                    {"expected", expected_value(*key)},
                    {"help", key->help}});
  }
  return {{"version", SWITCHYARD_VERSION}, {"keys", keys}};
}

void print_declaration(const KeyDeclaration& key, std::size_t name_width) {
  const std::string value = value_text(key.default_value);
  fmt::print("{:<{}}  {:<8}{:<16}  {:<12}  {}", key.name, name_width, status_name(key.status), type_name(key),
             value.empty() ? "''" : value, key.help);
  if (!key.check.choices.empty()) fmt::print(" ({})", expected_value(key));
  fmt::print("\n");
}

void print_declarations(const std::vector<const KeyDeclaration*>& shown) {
  std::size_t name_width = 0;
  for (const KeyDeclaration* key : shown) name_width = std::max(name_width, key->name.size());
  const char* between = "";
  for (const KeyRole role : kKeyRoles) {
    bool has_heading = false;
    for (const KeyDeclaration* key : shown) {
      if (key->role != role) continue;
      if (!has_heading) fmt::print("{}{}\n\n", between, role_heading(role));
      has_heading = true;
      between = "\n";
      print_declaration(*key, name_width);
    }
  }
}

void write_json(const nlohmann::json& value, const std::string& file) {
  write_file_atomic(file, value.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

void list_keys(const Options& options) {
  const std::vector<const KeyDeclaration*> shown = keys_with(options.settings);
  if (options.json_file.empty())
    print_declarations(shown);
  else
    write_json(declarations(shown), options.json_file);
}

void print_template(const Options& options) {
  if (!options.settings.empty() || !options.json_file.empty())
    fail_usage("[config] --template: expected nothing more, as it is a file to edit");
  const std::filesystem::path file = config_of_ours(kTemplate);
  if (file.empty())
    fail_usage("[config] --template: there is no examples/{} in {}", kTemplate, config_folder().string());
  fmt::print("{}", read_whole_file(file.string()));
}

void show_settings(const Options& options, bool only_changed) {
  const Config config = config_to_train("config", 1, options.settings);
  for (const std::string& line : config.notices()) fmt::print(stderr, "{}\n", line);
  if (options.json_file.empty()) {
    fmt::print("{}", config.describe(only_changed));
    return;
  }
  const nlohmann::json all = config.resolved();
  nlohmann::json shown = nlohmann::json::object();
  for (const auto& [name, value] : all.items()) {
    if (!only_changed || config.is_changed(name)) shown[name] = value;
  }
  write_json({{"version", SWITCHYARD_VERSION}, {"config", shown}}, options.json_file);
}

}  // namespace

int config_command(std::span<const std::string> args) {
  const Options options = parse_options("config", args);
  if (options.help) {
    print_help_page(kConfigHelp);
    return 0;
  }
  if (options.flags.size() > 1)
    fail_usage("[config] expected one of --list, --changed and --template, got {}",
               fmt::join(options.flags, ", "));
  if (options.flags.contains("--list"))
    list_keys(options);
  else if (options.flags.contains("--template"))
    print_template(options);
  else
    show_settings(options, options.flags.contains("--changed"));
  return 0;
}

}  // namespace switchyard

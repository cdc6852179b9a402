#include "config/config.h"

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <set>
#include <utility>

#include "config/builder.h"
#include "config/declaration.h"
#include "config/meant_keys.h"
#include "config/value.h"
#include "core/error.h"

namespace switchyard {

Config Config::from_args(std::span<const std::string> args) {
  ConfigBuilder builder;
  if (!args.empty() && args[0].find('=') == std::string::npos && !args[0].starts_with("-") &&
      !args[0].empty()) {
    if (const std::string setting = setting_meant(args, 0);
        !setting.empty() && !std::filesystem::exists(args[0]))
      fail_usage("[config] expected key=value, got {}; write {}", args[0], setting);
    builder.set_config_file(args[0]);
    args = args.subspan(1);
  }
  builder.add_arguments(args);
  builder.add_environment();
  return builder.build();
}

Config Config::from_map(const std::map<std::string, nlohmann::json>& keys,
                        std::span<const std::string> overrides) {
  ConfigBuilder builder;
  builder.add_map(keys);
  builder.add_arguments(overrides);
  return builder.build();
}

Config Config::from_map_and_environment(const std::map<std::string, nlohmann::json>& keys,
                                        std::span<const std::string> overrides) {
  ConfigBuilder builder;
  builder.add_map(keys);
  builder.add_arguments(overrides);
  builder.add_environment();
  return builder.build();
}

const Config::Entry& Config::entry(std::string_view key) const {
  const auto found = entries_.find(key);
  CHECK(found != entries_.end(), "key {} is not declared in src/config", key);
  return found->second;
}

bool Config::get_bool(std::string_view key) const {
  const nlohmann::json& value = entry(key).value;
  CHECK(value.is_boolean(), "key {} is no boolean: {}", key, value.dump());
  return value.get<bool>();
}

std::int64_t Config::get_int(std::string_view key) const {
  const nlohmann::json& value = entry(key).value;
  CHECK(value.is_number_integer(), "key {} is no integer: {}", key, value.dump());
  return value.get<std::int64_t>();
}

double Config::get_float(std::string_view key) const {
  const nlohmann::json& value = entry(key).value;
  CHECK(value.is_number(), "key {} is no number: {}", key, value.dump());
  return value.get<double>();
}

const std::string& Config::get_string(std::string_view key) const {
  static const std::string none;
  const Entry& found = entry(key);
  CHECK(found.declaration->type == KeyType::text, "key {} is no text: {}", key, found.value.dump());
  return found.value.is_null() ? none : found.value.get_ref<const std::string&>();
}

std::vector<std::string> Config::get_strings(std::string_view key) const {
  const Entry& found = entry(key);
  CHECK(found.declaration->type == KeyType::text_list, "key {} is no list of text: {}", key,
        found.value.dump());
  return found.value.get<std::vector<std::string>>();
}

std::vector<std::int64_t> Config::get_ints(std::string_view key) const {
  const Entry& found = entry(key);
  CHECK(found.declaration->type == KeyType::integer_list, "key {} is no list of integers: {}", key,
        found.value.dump());
  return found.value.get<std::vector<std::int64_t>>();
}

std::vector<double> Config::get_numbers(std::string_view key) const {
  const Entry& found = entry(key);
  CHECK(found.declaration->type == KeyType::number_list, "key {} is no list of numbers: {}", key,
        found.value.dump());
  return found.value.get<std::vector<double>>();
}

std::vector<std::pair<std::int64_t, double>> Config::get_numbers_by_id(std::string_view key) const {
  const Entry& found = entry(key);
  CHECK(found.declaration->type == KeyType::structure, "key {} is no nested list: {}", key,
        found.value.dump());
  std::vector<std::pair<std::int64_t, double>> numbers;
  std::set<std::int64_t> ids;
  const auto refuse = [&](const nlohmann::json& what) {
    fail_usage(
        "[config] {}: expected pairs of an id and a number, each id once, such as [[5, -1.5], [7, 2]], "
        "got {}",
        key, value_text(what));
  };
  const KeyDeclaration of_id = integer_key(std::string(key), 0, at_least(0), ""),
                       of_number = float_key(std::string(key), 0, any_number(), "");
  if (!found.value.is_array()) refuse(found.value);
  for (const nlohmann::json& pair : found.value) {
    if (!pair.is_array() || pair.size() != 2) refuse(pair);
    numbers.emplace_back(typed_value(of_id, pair[0], found.source).get<std::int64_t>(),
                         typed_value(of_number, pair[1], found.source).get<double>());
    if (!ids.insert(numbers.back().first).second) refuse(pair);
  }
  return numbers;
}

bool Config::follows_maxtext() const {
  return get_string("compat") != "none";
}

bool Config::is_none(std::string_view key) const {
  const nlohmann::json& value = entry(key).value;
  return value.is_null() || value == "";
}

bool Config::is_set_by_user(std::string_view key) const {
  return entry(key).by_user;
}

void Config::name_run(std::chrono::system_clock::time_point start) {
  constexpr const char* kSource = "<model>_<time>";
  if (!is_none("run_name") && entry("run_name").source != kSource) return;
  const auto milliseconds =
      std::chrono::duration_cast<std::chrono::milliseconds>(start.time_since_epoch()).count() % 1000;
  const std::time_t seconds = std::chrono::system_clock::to_time_t(start);
  std::tm local{};
  localtime_r(&seconds, &local);
  char text[32];
  std::strftime(text, sizeof text, "%Y%m%d-%H%M%S", &local);
  set("run_name", fmt::format("{}_{}-{:03}", get_string("model_name"), text, milliseconds), kSource);
}

void Config::derive_dataset_type() {
  const std::string &source = entry("dataset_type").source, path = get_string("data_path");
  const bool is_open = source == "default" || source == kBaseFile || source.starts_with("data_path=");
  if (path.empty() || !is_open) return;
  const std::filesystem::path first = path.substr(0, path.find(':'));
  std::error_code problem;  // a folder of `data build` has both
  const bool tokens = std::filesystem::exists(first / "dataset.json", problem) &&
                      std::filesystem::exists(first / "train-00001.tokens", problem);
  set("dataset_type", tokens ? "tokenized" : "text", "data_path=" + path);
}

void Config::set(std::string_view key, nlohmann::json value, std::string source) {
  const auto found = entries_.find(key);
  CHECK(found != entries_.end(), "key {} is not declared in src/config", key);
  found->second.value = typed_value(*found->second.declaration, value, source);
  found->second.source = std::move(source);
}

std::vector<std::string> Config::mesh_axes() const {
  return get_strings("mesh_axes");
}

std::vector<AxisRule> Config::axis_rules() const {
  return axis_rules_of(entry("logical_axis_rules").value);
}

std::vector<AxisRule> Config::axis_rules_for_eval() const {
  return rules_for_eval_.is_null() ? axis_rules() : axis_rules_of(rules_for_eval_);
}

nlohmann::json Config::resolved() const {
  nlohmann::json all = nlohmann::json::object();
  for (const auto& [name, found] : entries_) all[name] = found.value;
  return all;
}

bool Config::is_changed(std::string_view key) const {
  const Entry& found = entry(key);
  return found.source != "default" && found.source != "base.yml" &&
         found.value != found.declaration->default_value;
}

std::string Config::describe(bool only_changed) const {
  std::size_t name_width = 0;
  std::vector<const KeyDeclaration*> shown;
  for (const KeyDeclaration& key : all_keys()) {
    if (only_changed && !is_changed(key.name)) continue;
    shown.push_back(&key);
    name_width = std::max(name_width, key.name.size());
  }
  std::string text;
  for (const KeyDeclaration* const key : shown) {
    const Entry& found = entry(key->name);
    const std::string mark = key->status == KeyStatus::active ? "" : ", " + status_name(key->status);
    text += fmt::format("{:<{}}  {}  ({}{})\n", key->name, name_width, value_text(found.value), found.source,
                        mark);
  }
  return text;
}

}  // namespace switchyard

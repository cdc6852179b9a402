// The settings of one run: every declared key with its value and where the value came from.
//
// clang-format off
// 1. A key is declared once (keys_*.cc: type, default, help, check, status, role). That declaration parses,
//    checks, prints and documents it; a key without one is an error that names the nearest known key.
// 2. Precedence: command line and environment (M_KEY) > model_name's file > CONFIG.yml > configs/base.yml > declared default. The axes,
//    rules and data sharding of a mesh file (custom_mesh_and_rule) come last: they are the layout.
// 3. `inert` keys are accepted and listed once in notices(); a `planned` key that is not at its default
//    is an error.
// clang-format on
//
// A Config is a value: copy it, change the copy with set(). Reading from several threads at once is safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/axis_rule.h"

namespace switchyard {

struct KeyDeclaration;

// The value of `compat` for MaxText as of August 2026.
inline constexpr std::string_view kCompat202608 = "maxtext-2026-08";

// The source of a value from configs/base.yml.
inline constexpr const char* kBaseFile = "base.yml";

class Config {
 public:
  // Parses `[CONFIG.yml] key=value …` as on the command line. Throws Error(usage) with one line that names
  // the key or file, the value and what is expected.
  // Keys of the environment (M_STEPS=77) count as those of the command line do, and may not be on it, too.
  static Config from_args(std::span<const std::string> args);

  // Builds a Config from a key -> value map (a case of `verify`, a Hugging Face config), with `overrides`
  // (`key=value …`) on top. `expert_parallelism` means ici_expert_parallelism here.
  static Config from_map(const std::map<std::string, nlohmann::json>& keys,
                         std::span<const std::string> overrides);
  // from_map with the environment's keys, for a command line whose model describes itself.
  static Config from_map_and_environment(const std::map<std::string, nlohmann::json>& keys,
                                         std::span<const std::string> overrides);

  // Values by type. An undeclared key or a key of another
  // type is a bug and aborts; get_float also reads integers.
  bool get_bool(std::string_view key) const;
  std::int64_t get_int(std::string_view key) const;
  double get_float(std::string_view key) const;
  const std::string& get_string(std::string_view key) const;  // "" for None
  std::vector<std::string> get_strings(std::string_view key) const;
  std::vector<std::int64_t> get_ints(std::string_view key) const;
  std::vector<double> get_numbers(std::string_view key) const;
  // A list of [id, number] pairs, each id once. Error(usage) for anything else in nested lists.
  std::vector<std::pair<std::int64_t, double>> get_numbers_by_id(std::string_view key) const;
  bool is_none(std::string_view key) const;  // true for None and for an empty string

  // True for compat=maxtext, in any version.
  bool follows_maxtext() const;

  // True when the command line, the overrides or the case's map gave the key, with any value.
  bool is_set_by_user(std::string_view key) const;

  // Sets a derived value, typed and checked like any other.
  // `source` names where the value came from ("mesh file", …).
  void set(std::string_view key, nlohmann::json value, std::string source);

  // Names a run that has no name of its own <model>_<time>, to the millisecond, so that runs that begin in
  // one second have folders of their own. Processes of one run pass the same `start`.
  void name_run(std::chrono::system_clock::time_point start);

  // Data of data_path without their kind are text, or what `switchyard data build` made of it.
  void derive_dataset_type();

  // The mesh axes, major to minor, and the ordered rules, as custom_mesh_and_rule sets them.
  std::vector<std::string> mesh_axes() const;
  std::vector<AxisRule> axis_rules() const;
  // The rules for evaluations during training: from custom_mesh_and_rule_for_eval, or else axis_rules().
  std::vector<AxisRule> axis_rules_for_eval() const;

  // Lines to print once at start: inert keys, keys given twice, cloud folders that became local ones.
  const std::vector<std::string>& notices() const { return notices_; }

  // Every key with its value, as an object.
  nlohmann::json resolved() const;
  // True when a run without any settings has another value.
  bool is_changed(std::string_view key) const;
  // Every key, or every changed key, with its value and its source, one per line (log_config=true).
  std::string describe(bool only_changed = false) const;

 private:
  friend class ConfigBuilder;

  struct Entry {
    const KeyDeclaration* declaration = nullptr;
    nlohmann::json value;
    std::string source;
    bool by_user = false;
  };

  const Entry& entry(std::string_view key) const;

  std::map<std::string, Entry, std::less<>> entries_;
  nlohmann::json rules_for_eval_;  // null: logical_axis_rules apply
  std::vector<std::string> notices_;
};

}  // namespace switchyard

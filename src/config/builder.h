// Builds a Config, layer by layer. Used by Config::from_args and Config::from_map only.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "config/config.h"
#include "config/config_file.h"

namespace switchyard {

class ConfigBuilder {
 public:
  ConfigBuilder();

  // Adds keys that a user gave; a later value wins. A key given twice in one source is noted once.
  // The environment's are M_ and a key in capitals, as MaxText reads them; none may be an argument, too.
  void add_environment();
  void add_arguments(std::span<const std::string> arguments);
  void add_map(const std::map<std::string, nlohmann::json>& keys);
  // Sets the CONFIG.yml of the command line.
  void set_config_file(const std::string& path) { config_path_ = path; }

  // Reads the files, merges, checks, derives. Throws Error(usage). Call it once.
  Config build();

 private:
  struct UserKey {
    std::string name;
    nlohmann::json value;  // typed once the files are read
    std::string source;
  };

  void add_user_key(const std::string& name, nlohmann::json untyped, const std::string& source);
  void add_text(const std::string& name, const std::string& text, const std::string& source);
  void read_files();
  // A key's value as whoever counts most gives it.
  struct Given {
    nlohmann::json value;  // untyped
    std::string source;
  };
  Given given(const std::string& name) const;
  nlohmann::json value_of(const std::string& name, const nlohmann::json& untyped,
                          const std::string& source) const;
  nlohmann::json value_given(const std::string& name) const;
  void assign(const std::string& name, nlohmann::json value, const std::string& source, bool by_user);
  void apply_file(const UntypedKeys& keys, const std::string& source);
  UntypedKeys apply_layers(const std::vector<ConfigLayer>& layers);
  void find_model_file();
  void apply_model_file();
  UntypedKeys apply_described_model(UntypedKeys keys, const std::string& source);
  UntypedKeys text_decoder(UntypedKeys keys, const std::string& source);
  void check_against_model(const std::string& name, const nlohmann::json& value);
  void apply_user_keys();
  void tell_unknown_dims(const nlohmann::json& rules, const std::string& source);
  void merge_rules();
  void derive_mesh_file();
  void apply_mesh_file();
  void apply_mesh_file_for_eval();
  void complete_rules();
  nlohmann::json completed(const nlohmann::json& rules) const;
  void expand_home();
  void derive_names();
  void derive_sft();
  void derive_block();
  void derive_llama3_scaling();
  void derive_normalised_scores();
  void derive_compat();
  void refuse_planned() const;
  void list_inert();
  std::filesystem::path resolved_config_path();
  void notice(std::string line) { config_.notices_.push_back(std::move(line)); }

  Config config_;
  std::string config_path_;
  std::vector<UserKey> user_keys_;
  UntypedKeys base_keys_;
  std::vector<ConfigLayer> config_layers_, model_layers_;  // each from the bottom up
  std::set<std::string> given_twice_;
  std::map<std::string, nlohmann::json> model_values_;
  std::string model_source_;
  std::vector<nlohmann::json> rule_layers_;  // from the bottom up
  std::vector<std::string> known_dims_;      // the dims that base.yml has rules for
};

// Splits `key=value` in two; throws Error(usage) when there is no `=`.
std::pair<std::string, std::string> split_argument(const std::string& argument);

// Converts logical_axis_rules into rules; each is [name, axis], [name, [axis, …]] or [name, null].
std::vector<AxisRule> axis_rules_of(const nlohmann::json& rules);

// Error(usage) for a name in mesh_axes whose size no key gives.
void check_axis_name(const std::string& axis);
// Checks that the settings fit together (experts, heads, groups, widths). Throws Error(usage).
void check_consistency(const Config& config);
// One line for each key that the user set and that other keys leave without effect.
std::vector<std::string> ineffective_keys(const Config& config);

}  // namespace switchyard

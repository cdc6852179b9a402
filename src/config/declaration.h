// The declaration of a key: everything that the program knows about it. The tables are in keys_*.cc.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard {

enum class KeyType {
  boolean,
  integer,
  floating,
  text,
  text_list,
  integer_list,
  number_list,
  structure,  // nested lists, such as logical_axis_rules
};

enum class KeyStatus {
  active,   // the key does what its help says
  inert,    // the key has no effect in this program; accepted, listed once at start
  planned,  // known but not implemented yet; any value but the default is an error
  derived,  // the reference computes it from other keys; any value but None is an error
};

// The topic of a key. The program groups every list of keys by it.
enum class KeyRole {
  model,       // which function a model computes and which weights it has
  strategy,    // how experts are run; every choice computes the same model
  layout,      // ranks, mesh and sharding
  memory,      // what is kept for backward, recomputed or moved to other memory
  training,    // how weights change
  data,        // rows of tokens, and where they come from
  generation,  // how prompts are read and tokens are chosen
  run,         // the machine, and when a run stops
  output,      // what is measured, logged and written
  elsewhere,   // keys for other programs and models of the reference (configs/inert_keys.json)
};
constexpr KeyRole kKeyRoles[] = {KeyRole::model,    KeyRole::strategy, KeyRole::layout,     KeyRole::memory,
                                 KeyRole::training, KeyRole::data,     KeyRole::generation, KeyRole::run,
                                 KeyRole::output,   KeyRole::elsewhere};

// The execution path for experts (sparse_matmul) on which a key has effect.
enum class ExpertPath { both, sparse, dense };

// The effect when a resumed run's value differs from the checkpoint's: allowed, noted or refused.
enum class OnResume { free, noted, refused };

// The condition that a value must meet beyond its type. For lists, every element must meet it.
struct KeyCheck {
  std::optional<double> minimum;
  bool minimum_excluded = false;
  std::optional<double> maximum;
  std::optional<double> also;        // one value allowed outside the range, such as -1
  std::vector<std::string> choices;  // empty: any text
  std::vector<std::string> planned;  // known choices that are not implemented yet
};

struct KeyDeclaration {
  std::string name;
  KeyType type;
  nlohmann::json default_value;
  std::string help;
  KeyStatus status = KeyStatus::active;
  KeyCheck check;
  std::optional<KeyRole> role;  // none: the table's role; set for every key of all_keys()
  ExpertPath path = ExpertPath::both;
  std::optional<OnResume> on_resume;  // in all_keys(): noted where the role is training or data, else free
  bool optional = false;              // None is a value
  bool verbatim = false;              // a text whose spaces, quotes and brackets are kept
};

// Builders, so that a table has one line for each key.
KeyDeclaration boolean_key(std::string name, bool value, std::string help);
KeyDeclaration integer_key(std::string name, std::int64_t value, KeyCheck check, std::string help);
KeyDeclaration float_key(std::string name, double value, KeyCheck check, std::string help);
KeyDeclaration text_key(std::string name, std::string value, std::string help);
KeyDeclaration choice_key(std::string name, std::string value, KeyCheck check, std::string help);
KeyDeclaration text_list_key(std::string name, std::vector<std::string> value, std::string help);
KeyDeclaration integer_list_key(std::string name, std::vector<std::int64_t> value, std::string help);
KeyDeclaration number_list_key(std::string name, std::vector<double> value, std::string help);
KeyDeclaration structure_key(std::string name, nlohmann::json value, std::string help);

KeyDeclaration planned(KeyDeclaration key);
KeyDeclaration inert(KeyDeclaration key);
KeyDeclaration verbatim(KeyDeclaration key);
KeyDeclaration with_role(KeyRole role, KeyDeclaration key);
KeyDeclaration sparse_only(KeyDeclaration key);
KeyDeclaration dense_only(KeyDeclaration key);
KeyDeclaration may_change(KeyDeclaration key);  // OnResume::free
KeyDeclaration must_stay(KeyDeclaration key);   // OnResume::refused
KeyDeclaration optional(KeyDeclaration key);    // None is allowed and is the default

KeyCheck any_number();
KeyCheck at_least(double minimum);
KeyCheck more_than(double minimum);
KeyCheck between(double minimum, double maximum);
KeyCheck at_least_or(double minimum, double also);
KeyCheck more_than_or(double minimum, double also);
KeyCheck one_of(std::vector<std::string> choices, std::vector<std::string> planned = {});

// The tables, by topic.
std::vector<KeyDeclaration> run_keys();
std::vector<KeyDeclaration> output_keys();
std::vector<KeyDeclaration> generation_keys();
std::vector<KeyDeclaration> serve_keys();
std::vector<KeyDeclaration> model_keys();
std::vector<KeyDeclaration> attention_keys();
std::vector<KeyDeclaration> moe_keys();
std::vector<KeyDeclaration> adapter_keys();
std::vector<KeyDeclaration> strategy_keys();
std::vector<KeyDeclaration> parallelism_keys();
std::vector<KeyDeclaration> memory_keys();
std::vector<KeyDeclaration> train_keys();
std::vector<KeyDeclaration> data_keys();
// The keys in configs/inert_keys.json, which the build embeds in the program.
std::vector<KeyDeclaration> keys_from_elsewhere();

// All declarations, in the order of the tables. No key occurs twice.
const std::vector<KeyDeclaration>& all_keys();
// The key's declaration, or null when there is no such key.
const KeyDeclaration* find_key(std::string_view name);
// The nearest declared name by edit distance; empty when none is near.
std::string nearest_key(std::string_view name);
// The nearest of `candidates`; empty when none is near.
std::string nearest_of(std::string_view name, std::span<const std::string> candidates);
// The nearest name as the end of a message: "; the nearest is NAME", or empty.
std::string nearest_hint(std::string_view name, std::span<const std::string> candidates);

// The name of a key's type as shown to users: "integer", "boolean", …
std::string type_name(const KeyDeclaration& key);
std::string status_name(KeyStatus status);
// The heading for a role: "strategy: how experts are run …".
std::string role_heading(KeyRole role);
// Describes a legal value in words: "an integer of at least 1", "one of adamw, sgd".
std::string expected_value(const KeyDeclaration& key);

// Groups of keys: the reference writes lora.lora_rank=16, or lora: {lora_rank: 16} in a file, for lora_rank.
std::string without_group(const std::string& key);
bool is_group(const std::string& key);

}  // namespace switchyard

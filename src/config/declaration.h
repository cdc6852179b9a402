// The declaration of a key: everything the program knows about it. See keys_*.cc for the tables.
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
  structure,  // nested lists, such as logical_axis_rules
};

enum class KeyStatus {
  active,   // does what its help says
  inert,    // means nothing to this program; accepted, listed once at start
  planned,  // known, not built yet; any value but the default is an error
  derived,  // the reference computes it from other keys; any value but None is an error
};

// What a value must satisfy beyond its type. For lists it holds for every element.
struct KeyCheck {
  std::optional<double> minimum;
  bool minimum_excluded = false;
  std::optional<double> maximum;
  std::optional<double> also;        // one value allowed outside the range, such as -1
  std::vector<std::string> choices;  // empty: any text
  std::vector<std::string> planned;  // known choices that are not built yet
};

struct KeyDeclaration {
  std::string name;
  KeyType type;
  nlohmann::json default_value;
  std::string help;
  KeyStatus status = KeyStatus::active;
  KeyCheck check;
  bool optional = false;  // None is a value
  bool verbatim = false;  // a text in which spaces, quotes and brackets are what they are
};

// Builders, so that a table reads as one line a key.
KeyDeclaration boolean_key(std::string name, bool value, std::string help);
KeyDeclaration integer_key(std::string name, std::int64_t value, KeyCheck check, std::string help);
KeyDeclaration float_key(std::string name, double value, KeyCheck check, std::string help);
KeyDeclaration text_key(std::string name, std::string value, std::string help);
KeyDeclaration choice_key(std::string name, std::string value, KeyCheck check, std::string help);
KeyDeclaration text_list_key(std::string name, std::vector<std::string> value, std::string help);
KeyDeclaration integer_list_key(std::string name, std::vector<std::int64_t> value, std::string help);
KeyDeclaration structure_key(std::string name, nlohmann::json value, std::string help);

// Of status derived; `instead` says which keys to set.
KeyDeclaration derived_key(std::string name, const std::string& instead);

KeyDeclaration planned(KeyDeclaration key);
KeyDeclaration inert(KeyDeclaration key);
KeyDeclaration verbatim(KeyDeclaration key);
KeyDeclaration optional(KeyDeclaration key);  // None is allowed, and is the default

KeyCheck any_number();
KeyCheck at_least(double minimum);
KeyCheck more_than(double minimum);
KeyCheck between(double minimum, double maximum);
KeyCheck at_least_or(double minimum, double also);
KeyCheck more_than_or(double minimum, double also);
KeyCheck one_of(std::vector<std::string> choices, std::vector<std::string> planned = {});

// Inert keys that share one reason, which is their help; name and default of each.
struct InertDefault {
  std::string name;
  nlohmann::json value;  // its type is the key's; null is optional text
};
std::vector<KeyDeclaration> inert_group(const std::string& help, std::span<const InertDefault> keys);
// The same with status planned: any value but the default is an error.
std::vector<KeyDeclaration> planned_group(const std::string& help, std::span<const InertDefault> keys);

// The tables by topic.
std::vector<KeyDeclaration> run_keys();
std::vector<KeyDeclaration> model_keys();
std::vector<KeyDeclaration> attention_keys();
std::vector<KeyDeclaration> moe_keys();
std::vector<KeyDeclaration> parallelism_keys();
std::vector<KeyDeclaration> memory_keys();
std::vector<KeyDeclaration> train_keys();
std::vector<KeyDeclaration> data_keys();
std::vector<KeyDeclaration> accelerator_keys();  // inert: XLA, TPU and GPU kernels
std::vector<KeyDeclaration> service_keys();      // inert: cloud services, profilers, dumps
std::vector<KeyDeclaration> other_model_keys();  // inert: kinds of models not built here
std::vector<KeyDeclaration>
other_trainer_keys();                        // inert or planned: trainers of the reference not built here
std::vector<KeyDeclaration> derived_keys();  // what the reference computes from other keys

// All declarations, in the order of the tables. No key occurs twice.
const std::vector<KeyDeclaration>& all_keys();
// Null when there is no such key.
const KeyDeclaration* find_key(std::string_view name);
// The nearest declared name by edit distance; empty when none is near.
std::string nearest_key(std::string_view name);
// The nearest of `candidates`; empty when none is near.
std::string nearest_of(std::string_view name, std::span<const std::string> candidates);
// The same for the end of a message: "; the nearest is NAME", or empty.
std::string nearest_hint(std::string_view name, std::span<const std::string> candidates);

// "integer", "boolean", …, as shown to users.
std::string type_name(const KeyDeclaration& key);
std::string status_name(KeyStatus status);
// What a legal value is, in words: "an integer of at least 1", "one of adamw, sgd".
std::string expected_value(const KeyDeclaration& key);

}  // namespace switchyard

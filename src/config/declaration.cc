#include "config/declaration.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "core/error.h"

namespace switchyard {
namespace {

KeyDeclaration make(std::string name, KeyType type, nlohmann::json value, std::string help,
                    KeyCheck check = {}) {
  KeyDeclaration key{.name = std::move(name),
                     .type = type,
                     .default_value = std::move(value),
                     .help = std::move(help),
                     .status = KeyStatus::active,
                     .check = std::move(check),
                     .role = {},
                     .on_resume = {}};
  return key;
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({substituted, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row[b.size()];
}

// All keys in table order and by name; built once, never changed.
struct KeyTable {
  std::vector<KeyDeclaration> keys;
  std::vector<std::string> names;
  std::map<std::string, std::size_t, std::less<>> by_name;

  KeyTable() {
    using Role = KeyRole;
    add(Role::run, run_keys());
    add(Role::output, output_keys());
    add(Role::generation, generation_keys());
    add(Role::generation, serve_keys());
    add(Role::model, model_keys());
    add(Role::model, attention_keys());
    add(Role::model, moe_keys());
    add(Role::strategy, strategy_keys());
    add(Role::layout, parallelism_keys());
    add(Role::memory, memory_keys());
    add(Role::training, train_keys());
    add(Role::training, adapter_keys());
    add(Role::data, data_keys());
    add(Role::elsewhere, keys_from_elsewhere());
  }

  void add(KeyRole role, std::vector<KeyDeclaration> table) {
    for (KeyDeclaration& key : table) add(role, std::move(key));
  }

  void add(KeyRole role, KeyDeclaration key) {
    if (!key.role) key.role = role;
    const bool shapes_training = key.role == KeyRole::training || key.role == KeyRole::data;
    if (!key.on_resume) key.on_resume = shapes_training ? OnResume::noted : OnResume::free;
    const bool added = by_name.emplace(key.name, keys.size()).second;
    CHECK(added, "key {} is declared twice", key.name);
    names.push_back(key.name);
    keys.push_back(std::move(key));
  }
};

const KeyTable& key_table() {
  static const KeyTable table;
  return table;
}

}  // namespace

KeyDeclaration boolean_key(std::string name, bool value, std::string help) {
  return make(std::move(name), KeyType::boolean, value, std::move(help));
}
KeyDeclaration integer_key(std::string name, std::int64_t value, KeyCheck check, std::string help) {
  return make(std::move(name), KeyType::integer, value, std::move(help), std::move(check));
}
KeyDeclaration float_key(std::string name, double value, KeyCheck check, std::string help) {
  return make(std::move(name), KeyType::floating, value, std::move(help), std::move(check));
}
KeyDeclaration text_key(std::string name, std::string value, std::string help) {
  return make(std::move(name), KeyType::text, std::move(value), std::move(help));
}
KeyDeclaration choice_key(std::string name, std::string value, KeyCheck check, std::string help) {
  return make(std::move(name), KeyType::text, std::move(value), std::move(help), std::move(check));
}
KeyDeclaration text_list_key(std::string name, std::vector<std::string> value, std::string help) {
  return make(std::move(name), KeyType::text_list, std::move(value), std::move(help));
}
KeyDeclaration integer_list_key(std::string name, std::vector<std::int64_t> value, std::string help) {
  return make(std::move(name), KeyType::integer_list, std::move(value), std::move(help));
}
KeyDeclaration number_list_key(std::string name, std::vector<double> value, std::string help) {
  return make(std::move(name), KeyType::number_list, std::move(value), std::move(help));
}
KeyDeclaration structure_key(std::string name, nlohmann::json value, std::string help) {
  return make(std::move(name), KeyType::structure, std::move(value), std::move(help));
}

KeyDeclaration planned(KeyDeclaration key) {
  key.status = KeyStatus::planned;
  return key;
}
KeyDeclaration inert(KeyDeclaration key) {
  key.status = KeyStatus::inert;
  return key;
}
KeyDeclaration verbatim(KeyDeclaration key) {
  key.verbatim = true;
  return key;
}

KeyDeclaration with_role(KeyRole role, KeyDeclaration key) {
  key.role = role;
  return key;
}
KeyDeclaration sparse_only(KeyDeclaration key) {
  key.path = ExpertPath::sparse;
  return key;
}
KeyDeclaration dense_only(KeyDeclaration key) {
  key.path = ExpertPath::dense;
  return key;
}
KeyDeclaration may_change(KeyDeclaration key) {
  key.on_resume = OnResume::free;
  return key;
}
KeyDeclaration must_stay(KeyDeclaration key) {
  key.on_resume = OnResume::refused;
  return key;
}

KeyDeclaration optional(KeyDeclaration key) {
  key.optional = true;
  key.default_value = nullptr;
  return key;
}

KeyCheck any_number() {
  return {};
}
KeyCheck at_least(double minimum) {
  KeyCheck check;
  check.minimum = minimum;
  return check;
}
KeyCheck more_than(double minimum) {
  KeyCheck check = at_least(minimum);
  check.minimum_excluded = true;
  return check;
}
KeyCheck between(double minimum, double maximum) {
  KeyCheck check = at_least(minimum);
  check.maximum = maximum;
  return check;
}
KeyCheck at_least_or(double minimum, double also) {
  KeyCheck check = at_least(minimum);
  check.also = also;
  return check;
}
KeyCheck more_than_or(double minimum, double also) {
  KeyCheck check = more_than(minimum);
  check.also = also;
  return check;
}
KeyCheck one_of(std::vector<std::string> choices, std::vector<std::string> planned) {
  KeyCheck check;
  check.choices = std::move(choices);
  check.planned = std::move(planned);
  return check;
}

const std::vector<KeyDeclaration>& all_keys() {
  return key_table().keys;
}

const KeyDeclaration* find_key(std::string_view name) {
  const KeyTable& table = key_table();
  const auto found = table.by_name.find(name);
  return found == table.by_name.end() ? nullptr : &table.keys[found->second];
}

std::string nearest_key(std::string_view name) {
  return nearest_of(name, key_table().names);
}

std::string nearest_of(std::string_view name, std::span<const std::string> candidates) {
  // Further away than a third of its letters, a suggestion is noise.
  std::size_t best = std::max<std::size_t>(2, name.size() / 3) + 1;
  std::string nearest;
  if (name.size() > 100) return nearest;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(name, candidate);
    if (distance < best) {
      best = distance;
      nearest = candidate;
    }
  }
  return nearest;
}

std::string nearest_hint(std::string_view name, std::span<const std::string> candidates) {
  const std::string nearest = nearest_of(name, candidates);
  return nearest.empty() ? "" : "; the nearest is " + nearest;
}

std::string type_name(const KeyDeclaration& key) {
  std::string name;
  switch (key.type) {
    case KeyType::boolean:
      name = "boolean";
      break;
    case KeyType::integer:
      name = "integer";
      break;
    case KeyType::floating:
      name = "number";
      break;
    case KeyType::text:
      name = key.check.choices.empty() ? "text" : "choice";
      break;
    case KeyType::text_list:
      name = "list of text";
      break;
    case KeyType::integer_list:
      name = "list of integers";
      break;
    case KeyType::number_list:
      name = "list of numbers";
      break;
    case KeyType::structure:
      name = "nested lists";
      break;
  }
  return key.optional ? name + " or None" : name;
}

std::string status_name(KeyStatus status) {
  switch (status) {
    case KeyStatus::active:
      return "active";
    case KeyStatus::inert:
      return "inert";
    case KeyStatus::planned:
      return "planned";
    case KeyStatus::derived:
      return "derived";
  }
  CHECK(false, "status {}", static_cast<int>(status));
  return {};
}

std::string role_heading(KeyRole role) {
  switch (role) {
    case KeyRole::model:
      return "model: what a model computes, and which weights it has";
    case KeyRole::strategy:
      return "strategy: how experts are run; any choice is the same model";
    case KeyRole::layout:
      return "layout: ranks, mesh and sharding";
    case KeyRole::memory:
      return "memory: what is kept for backward, recomputed or moved away";
    case KeyRole::training:
      return "training: how weights change";
    case KeyRole::data:
      return "data: text, tokens and tokenizers";
    case KeyRole::generation:
      return "generation: how prompts are read and tokens picked";
    case KeyRole::run:
      return "run: the machine, where a run starts, and what stops it";
    case KeyRole::output:
      return "output: what is measured, logged and written";
    case KeyRole::elsewhere:
      return "elsewhere: other programs, machines and models of the reference";
  }
  CHECK(false, "role {}", static_cast<int>(role));
  return {};
}

std::string expected_value(const KeyDeclaration& key) {
  if (!key.check.choices.empty()) {
    std::string list;
    for (const std::string& choice : key.check.choices) {
      list += (list.empty() ? "" : ", ") + (choice.empty() ? std::string("empty") : choice);
    }
    return "one of " + list;
  }
  std::string text;
  switch (key.type) {
    case KeyType::boolean:
      text = "true or false";
      break;
    case KeyType::integer:
      text = "an integer";
      break;
    case KeyType::floating:
      text = "a number";
      break;
    case KeyType::text:
      text = "text";
      break;
    case KeyType::text_list:
      text = "a list such as ['a', 'b']";
      break;
    case KeyType::integer_list:
      text = "a list of integers such as [1, 2]";
      break;
    case KeyType::number_list:
      text = "a list of numbers such as [1, 2.5]";
      break;
    case KeyType::structure:
      text = "nested lists such as [[embed, [fsdp]]]";
      break;
  }
  const KeyCheck& check = key.check;
  if (check.minimum && check.maximum)
    text += fmt::format(" from {} to {}", *check.minimum, *check.maximum);
  else if (check.minimum)
    text += fmt::format(" {} {}", check.minimum_excluded ? "above" : "of at least", *check.minimum);
  if (check.also) text += fmt::format(" or {}", *check.also);
  if (key.optional) text += " or None";
  return text;
}

}  // namespace switchyard

// SchemaNode: the demands of one place of a schema, with its references followed and its allOf joined.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "grammar/numbers.h"

namespace switchyard::grammar {

using Json = nlohmann::ordered_json;

// Kinds of value, one bit each. `fraction`: a number that is not written as an integer.
enum Kinds : unsigned {
  kind_null = 1,
  kind_boolean = 2,
  kind_integer = 4,
  kind_fraction = 8,
  kind_string = 16,
  kind_array = 32,
  kind_object = 64,
  kind_number = kind_integer | kind_fraction,
  kind_all = 127
};

class SchemaNode {
 public:
  // All asks of `schema`, a part of `root`. GrammarError where it refers to itself without end.
  SchemaNode(const Json& root, const Json& schema);
  // Adds asks, as a branch of anyOf does to what stands beside it.
  void add(const Json& schema);
  // Takes the last anyOf away and returns its branches.
  Json take_choice();
  // The schema that holds for a property, for other properties, for an item of an array, for items after
  // those listed: where several parts of an allOf ask, an allOf.
  Json property(const std::string& name) const;
  Json additional() const { return joined(object_parts, "additionalProperties"); }
  Json item(std::size_t index) const;
  Json other_items() const { return joined(array_parts, "items"); }
  std::size_t listed_items() const;
  // Properties in the order of the schema, then those that are only required.
  std::vector<std::string> names() const;

  unsigned kinds = kind_all;
  std::optional<Json> values;  // a list: enum or const
  std::vector<Json> choices;   // lists of branches, of each of which one holds
  std::vector<Json> object_parts, array_parts;
  std::vector<std::string> required;
  std::vector<std::string> patterns;  // of pattern and format
  std::int64_t min_items = 0, max_items = -1, min_length = 0, max_length = -1;
  Bounds integers, numbers;  // `integers`: bounds with fractions rounded inwards
  bool fraction_bound = false;
  // All but `choices` is as in the schema `true`.
  bool only_choices() const { return !constrained_ && choices.size() == 1; }

 private:
  void add_at(const Json& schema, int depth);
  void add_values(const Json& list);
  void add_bound(const Json& value, bool is_min, bool is_out);
  static Json joined(const std::vector<Json>& parts, const char* key);

  const Json& root_;
  bool constrained_ = false;
};

// Returns whether a value keeps a schema. GrammarError for a pattern, which is not tried.
bool holds(const Json& root, const Json& schema, const Json& value, int depth = 0);
// Does the same for the demands of a node without its choices.
bool node_holds(const Json& root, const SchemaNode& node, const Json& value, int depth);
bool equal(const Json& a, const Json& b);
// A text that equal values have in common.
std::string canonical(const Json& value);
// Returns whether no value can keep both, as far as types, exact values, bounds of integers, required
// properties and lengths show.
bool disjoint(const Json& root, const Json& a, const Json& b, int depth = 0);

}  // namespace switchyard::grammar

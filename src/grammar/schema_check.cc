#include "grammar/schema_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "grammar/formats.h"
#include "grammar/grammar.h"
#include "grammar/regex.h"
#include "grammar/schema_node.h"
#include "grammar/work_limit.h"

namespace switchyard::grammar {

namespace {

// The form of a keyword's value, by which the check walks it. Keywords that JSON Schema does not define ask
// nothing of values: they are annotations.
enum class Ask {
  not_kept,
  type,
  schema,
  schema_list,
  schema_map,
  names,
  values,
  value,
  count,
  bound,
  pattern,
  format,
  reference
};

const std::map<std::string, Ask, std::less<>>& kept_keywords() {
  static const std::map<std::string, Ask, std::less<>> keywords = {{"type", Ask::type},
                                                                   {"properties", Ask::schema_map},
                                                                   {"required", Ask::names},
                                                                   {"additionalProperties", Ask::schema},
                                                                   {"items", Ask::schema},
                                                                   {"prefixItems", Ask::schema_list},
                                                                   {"minItems", Ask::count},
                                                                   {"maxItems", Ask::count},
                                                                   {"minLength", Ask::count},
                                                                   {"maxLength", Ask::count},
                                                                   {"enum", Ask::values},
                                                                   {"const", Ask::value},
                                                                   {"anyOf", Ask::schema_list},
                                                                   {"oneOf", Ask::schema_list},
                                                                   {"allOf", Ask::schema_list},
                                                                   {"$ref", Ask::reference},
                                                                   {"$defs", Ask::schema_map},
                                                                   {"definitions", Ask::schema_map},
                                                                   {"pattern", Ask::pattern},
                                                                   {"format", Ask::format},
                                                                   {"minimum", Ask::bound},
                                                                   {"maximum", Ask::bound},
                                                                   {"exclusiveMinimum", Ask::bound},
                                                                   {"exclusiveMaximum", Ask::bound}};
  return keywords;
}

// Keywords that ask something and are not kept, of all drafts.
constexpr std::array kNotKept = {"not",
                                 "if",
                                 "then",
                                 "else",
                                 "patternProperties",
                                 "propertyNames",
                                 "minProperties",
                                 "maxProperties",
                                 "dependencies",
                                 "dependentRequired",
                                 "dependentSchemas",
                                 "unevaluatedProperties",
                                 "unevaluatedItems",
                                 "additionalItems",
                                 "contains",
                                 "minContains",
                                 "maxContains",
                                 "uniqueItems",
                                 "multipleOf",
                                 "divisibleBy",
                                 "disallow",
                                 "extends",
                                 "$dynamicRef",
                                 "$recursiveRef"};

std::optional<Ask> ask_of(const std::string& key) {
  if (const auto known = kept_keywords().find(key); known != kept_keywords().end()) return known->second;
  if (std::ranges::find(kNotKept, key) != kNotKept.end()) return Ask::not_kept;
  return std::nullopt;
}

// Keywords that ask nothing when they have this value.
bool asks_nothing(const std::string& key, const Json& value) {
  if (key == "uniqueItems") return value == Json(false);
  return (key == "minProperties" || key == "minContains") && value == Json(0);
}

class Walk {
 public:
  explicit Walk(const Json& root) : root_(root) {}

  void schema(const Json& at, const std::string& place, int depth) {
    if (at.is_boolean()) return;
    if (!at.is_object()) fail("schema", place, "must be an object or a boolean");
    if (depth > SchemaLimits::depth)
      fail("schema", place, fmt::format("is nested deeper than {}", SchemaLimits::depth));
    for (const auto& entry : at.items()) {
      const std::optional<Ask> ask = ask_of(entry.key());
      if (!ask || asks_nothing(entry.key(), entry.value())) continue;
      keyword(*ask, entry.key(), entry.value(), place, depth);
    }
    pairs(at, place);
  }

  // Not at once, as a chain of references may be long.
  void references() {
    while (!open_.empty()) {
      const auto [at, place] = std::move(open_.back());
      open_.pop_back();
      schema(*at, place, 0);
    }
  }

  // References are followed once all parts are known to be well formed.
  void choices(const Json& at, const std::string& place) {
    if (!at.is_object()) return;
    for (const auto& entry : at.items()) {
      const auto known = kept_keywords().find(entry.key());
      if (known == kept_keywords().end()) continue;
      const std::string inside = place + "/" + escaped(entry.key());
      if (entry.key() == "oneOf") one_of_branches(entry.value(), place);
      if (known->second == Ask::schema) choices(entry.value(), inside);
      if (known->second != Ask::schema_list && known->second != Ask::schema_map) continue;
      for (const auto& part : entry.value().items())
        choices(part.value(), inside + "/" + escaped(part.key()));
    }
  }

 private:
  [[noreturn]] static void fail(std::string_view key, const std::string& place, std::string_view what) {
    throw GrammarError(fmt::format("\"{}\" at {} {}", key, place, what));
  }

  static std::string escaped(const std::string& key) {
    std::string out;
    for (char c : key) out += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
    return out;
  }

  void keyword(Ask ask, const std::string& key, const Json& value, const std::string& place, int depth) {
    const std::string inside = place + "/" + escaped(key);
    switch (ask) {
      case Ask::not_kept:
        fail(key, place, "is not kept");
      case Ask::type:
        return type(value, place);
      case Ask::schema:
        return schema(value, inside, depth + 1);
      case Ask::schema_list:
        if (!value.is_array() || value.empty()) fail(key, place, "must be a list of schemas");
        [[fallthrough]];
      case Ask::schema_map:
        if (ask == Ask::schema_map && !value.is_object()) fail(key, place, "must be an object of schemas");
        for (const auto& part : value.items())
          schema(part.value(), inside + "/" + escaped(part.key()), depth + 1);
        return ask == Ask::schema_map ? names_of(key, value, place) : void();
      case Ask::names:
        if (!value.is_array()) fail(key, place, "must be a list of texts");
        for (const Json& name : value) {
          if (!name.is_string()) fail(key, place, "must be a list of texts");
          if (name.get_ref<const std::string&>().size() > SchemaLimits::name_length)
            fail(key, place, "has a name that is too long");
        }
        if (value.size() > SchemaLimits::names)
          fail(key, place, fmt::format("has more than {} names", SchemaLimits::names));
        return;
      case Ask::values:
        if (!value.is_array() || value.empty()) fail(key, place, "must be a list of values");
        return;
      case Ask::value:
        return;
      case Ask::count:
        return count(key, value, place);
      case Ask::bound:
        return bound(key, value, place);
      case Ask::pattern:
        return pattern(value, place);
      case Ask::format:
        if (!value.is_string()) fail(key, place, "must be a text");
        if (is_format_not_kept(value.get<std::string>()))
          fail(key, place, fmt::format("is {}, which is not kept", value.dump()));
        return;
      case Ask::reference:
        if (!value.is_string()) fail(key, place, "must be a text");
        referred(resolve(root_, value.get_ref<const std::string&>()), value.get<std::string>());
    }
  }

  void names_of(const std::string& key, const Json& value, const std::string& place) {
    if (value.size() > SchemaLimits::names)
      fail(key, place, fmt::format("has more than {} names", SchemaLimits::names));
    for (const auto& entry : value.items()) {
      if (entry.key().size() > SchemaLimits::name_length) fail(key, place, "has a name that is too long");
    }
  }

  // A reference may lead to a place that no keyword walks to.
  void referred(const Json& at, const std::string& place) {
    if (referred_.insert(&at).second) open_.emplace_back(&at, place);
  }

  void type(const Json& value, const std::string& place) {
    static const std::set<std::string> types = {"null",   "boolean", "integer", "number",
                                                "string", "array",   "object"};
    const auto known = [&](const Json& one) {
      return one.is_string() && types.contains(one.get<std::string>());
    };
    if (known(value)) return;
    bool all = value.is_array() && !value.empty();
    if (all) {
      for (const Json& one : value) all = all && known(one);
    }
    if (!all) fail("type", place, "is none of JSON's types, nor a list of them");
  }

  void count(const std::string& key, const Json& value, const std::string& place) {
    if (!value.is_number() || value.get<double>() < 0 ||
        std::floor(value.get<double>()) != value.get<double>()) {
      fail(key, place, "must be an integer of 0 or more");
    }
    if (value.get<double>() > static_cast<double>(SchemaLimits::repetitions)) {
      fail(key, place, fmt::format("is above {}", SchemaLimits::repetitions));
    }
  }

  void bound(const std::string& key, const Json& value, const std::string& place) {
    constexpr double most = 9007199254740992.0;  // up to here a double has all integers
    if (!value.is_number()) fail(key, place, "must be a number");
    if (value.is_number_unsigned() && value.get<std::uint64_t>() > INT64_MAX)
      fail(key, place, "is beyond 2^63 - 1, which is not kept");
    if (value.is_number_integer()) return;
    if (!(std::abs(value.get<double>()) <= most)) fail(key, place, "is beyond 2^53, which is not kept");
  }

  void pattern(const Json& value, const std::string& place) {
    if (!value.is_string()) fail("pattern", place, "must be a text");
    try {
      anchored(parse_regex(value.get_ref<const std::string&>()), true);
    } catch (const GrammarError& error) {
      fail("pattern", place, fmt::format("has {}", error.what()));
    }
  }

  // Checks the keywords that depend on each other.
  void pairs(const Json& at, const std::string& place) {
    if (at.contains("pattern") && at.contains("format") &&
        pattern_of_format(at.at("format").get<std::string>()))
      fail("format", place, "beside \"pattern\" is not kept");
  }

  void one_of_branches(const Json& branches, const std::string& place) {
    for (std::size_t i = 0; i < branches.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        if (disjoint(root_, branches[j], branches[i])) continue;
        fail("oneOf", place,
             fmt::format("is not kept, as branches {} and {} may both hold; use anyOf", j, i));
      }
    }
  }

  const Json& root_;
  std::set<const Json*> referred_;
  std::vector<std::pair<const Json*, std::string>> open_;  // referred to and not yet walked
};

// %41 is A; what is no such escape stays.
std::string unescaped(std::string_view fragment) {
  std::string out;
  for (std::size_t i = 0; i < fragment.size(); ++i) {
    unsigned value = 0;
    const char* digits = fragment.data() + i + 1;
    if (fragment[i] == '%' && i + 2 < fragment.size() &&
        std::from_chars(digits, digits + 2, value, 16).ptr == digits + 2) {
      out += static_cast<char>(value);
      i += 2;
    } else {
      out += fragment[i];
    }
  }
  return out;
}

int nesting(const Json& value, int limit) {
  if (limit < 0 || !value.is_structured()) return 0;
  int deepest = 0;
  for (const Json& part : value) deepest = std::max(deepest, nesting(part, limit - 1));
  return deepest + 1;
}

}  // namespace

const Json& resolve(const Json& root, std::string_view reference) {
  const auto refuse = [&](std::string_view why) {
    throw GrammarError(fmt::format(
        "\"$ref\" {} {}", Json(reference).dump(-1, ' ', false, Json::error_handler_t::replace), why));
  };
  if (!reference.starts_with("#")) refuse("leads out of the document, which is not kept");
  const std::string pointer = unescaped(reference.substr(1));
  const Json* found = &root;
  if (!pointer.empty() && pointer[0] != '/') refuse("is no place of the document");
  try {
    found = &root.at(Json::json_pointer(pointer));
  } catch (const Json::exception&) {
    refuse("is no place of the document");
  }
  if (!found->is_object() && !found->is_boolean()) refuse("is no schema");
  return *found;
}

void check_schema(const Json& schema) {
  // A schema of `SchemaLimits::depth` has twice as many levels of JSON.
  if (nesting(schema, 4 * SchemaLimits::depth) > 3 * SchemaLimits::depth) {
    throw GrammarError(fmt::format("a schema is nested deeper than {}", SchemaLimits::depth));
  }
  const std::string text = schema.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > SchemaLimits::bytes) {
    throw GrammarError(fmt::format("a schema has {} bytes, above {}", text.size(), SchemaLimits::bytes));
  }
  const WorkLimit limit;
  Walk walk(schema);
  walk.schema(schema, "#", 0);
  walk.references();
  walk.choices(schema, "#");
}

}  // namespace switchyard::grammar

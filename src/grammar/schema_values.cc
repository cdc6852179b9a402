// Which values keep a schema, and which schemas no value keeps together.
#include <algorithm>
#include <cmath>
#include <functional>

#include "grammar/grammar.h"
#include "grammar/rules.h"
#include "grammar/schema_node.h"
#include "grammar/work_limit.h"

namespace switchyard::grammar {

namespace {

unsigned kinds_of_value(const Json& value) {
  if (value.is_null()) return kind_null;
  if (value.is_boolean()) return kind_boolean;
  if (value.is_number_integer()) return kind_integer;
  if (value.is_number()) {
    const double number = value.get<double>();
    return std::floor(number) == number ? kind_integer : kind_fraction;
  }
  if (value.is_string()) return kind_string;
  return value.is_array() ? kind_array : kind_object;
}

template <typename T>
bool within(const Bounds& bounds, T value) {
  const auto as = [](std::int64_t bound) { return static_cast<T>(bound); };
  if (bounds.min && (bounds.above_min ? value <= as(*bounds.min) : value < as(*bounds.min))) return false;
  return !bounds.max || (bounds.below_max ? value < as(*bounds.max) : value <= as(*bounds.max));
}

bool size_within(std::size_t size, std::int64_t min, std::int64_t max) {
  const auto count = static_cast<std::int64_t>(size);
  return count >= min && (max < 0 || count <= max);
}

bool number_holds(const SchemaNode& node, const Json& value) {
  if (node.fraction_bound && !value.is_number_integer())
    throw GrammarError("a bound with a fraction beside enum is not kept");
  if (!value.is_number_integer()) return within(node.integers, value.get<double>());
  const bool beyond = value.is_number_unsigned() && value.get<std::uint64_t>() > INT64_MAX;
  return beyond ? !node.integers.max : within(node.integers, value.get<std::int64_t>());
}

bool array_holds(const Json& root, const SchemaNode& node, const Json& value, int depth) {
  if (!size_within(value.size(), node.min_items, node.max_items)) return false;
  for (std::size_t i = 0; i < value.size(); ++i) {
    if (!holds(root, node.item(i), value[i], depth + 1)) return false;
  }
  return true;
}

bool object_holds(const Json& root, const SchemaNode& node, const Json& value, int depth) {
  for (const std::string& name : node.required) {
    if (!value.contains(name)) return false;
  }
  for (const auto& entry : value.items()) {
    if (!holds(root, node.property(entry.key()), entry.value(), depth + 1)) return false;
  }
  return true;
}

constexpr int max_disjoint_depth = 6, max_holds_depth = 200;
constexpr std::size_t max_variants = 64;

// The node once for each way through its choices; empty where there are too many.
std::vector<SchemaNode> variants(const SchemaNode& from) {
  std::vector<SchemaNode> open = {from}, done;
  for (std::size_t steps = 0; !open.empty(); ++steps) {
    if (steps > 4 * max_variants) return {};  // an anyOf may refer to itself
    SchemaNode node = std::move(open.back());
    open.pop_back();
    if (node.choices.empty()) {
      done.push_back(std::move(node));
    } else {
      for (const Json& branch : node.take_choice()) {
        open.push_back(node);
        open.back().add(branch);
      }
    }
    if (open.size() + done.size() > max_variants) return {};
  }
  return done;
}

bool bounds_disjoint(const SchemaNode& a, const SchemaNode& b) {
  if (a.fraction_bound || b.fraction_bound) return false;
  const auto below = [](const Bounds& low, const Bounds& high) {
    if (!low.max || !high.min) return false;
    return *low.max < *high.min || (*low.max == *high.min && (low.below_max || high.above_min));
  };
  return below(a.integers, b.integers) || below(b.integers, a.integers);
}

bool lengths_disjoint(std::int64_t min_a, std::int64_t max_a, std::int64_t min_b, std::int64_t max_b) {
  return (max_a >= 0 && max_a < min_b) || (max_b >= 0 && max_b < min_a);
}

bool objects_disjoint(const Json& root, const SchemaNode& a, const SchemaNode& b, int depth) {
  WorkLimit::check();
  if (depth >= max_disjoint_depth) return false;
  const auto found = [&](const SchemaNode& one, const SchemaNode& other) {
    return std::any_of(one.required.begin(), one.required.end(), [&](const std::string& name) {
      const Json schema = other.property(name);
      if (schema.is_boolean()) return !schema.get<bool>();
      const bool both = std::find(other.required.begin(), other.required.end(), name) != other.required.end();
      return (both || schema != Json::object()) && disjoint(root, one.property(name), schema, depth + 1);
    });
  };
  return found(a, b) || found(b, a);
}

// `value` is one of `a`'s; whether it keeps `b`, or that is not known.
bool may_hold(const Json& root, const SchemaNode& b, const Json& value) {
  try {
    return node_holds(root, b, value, 0);
  } catch (const GrammarError&) {
    return true;
  }
}

bool values_disjoint(const Json& root, const SchemaNode& a, const SchemaNode& b) {
  return std::none_of(a.values->begin(), a.values->end(), [&](const Json& value) {
    WorkLimit::check();
    return may_hold(root, a, value) && may_hold(root, b, value);
  });
}

bool nodes_disjoint(const Json& root, const SchemaNode& a, const SchemaNode& b, int depth) {
  const unsigned common = a.kinds & b.kinds;
  if (common == 0) return true;
  if (a.values && values_disjoint(root, a, b)) return true;
  if (b.values && values_disjoint(root, b, a)) return true;
  if (common & (kind_null | kind_boolean)) return false;
  if ((common & kind_number) && !bounds_disjoint(a, b)) return false;
  if ((common & kind_string) && !lengths_disjoint(a.min_length, a.max_length, b.min_length, b.max_length))
    return false;
  if ((common & kind_array) && !lengths_disjoint(a.min_items, a.max_items, b.min_items, b.max_items))
    return false;
  return !(common & kind_object) || objects_disjoint(root, a, b, depth);
}

}  // namespace

bool node_holds(const Json& root, const SchemaNode& node, const Json& value, int depth) {
  if ((node.kinds & kinds_of_value(value)) == 0) return false;
  if (node.values) {
    const auto same = [&](const Json& other) { return equal(value, other); };
    if (std::none_of(node.values->begin(), node.values->end(), same)) return false;
  }
  if (value.is_number()) return number_holds(node, value);
  if (value.is_string()) {
    if (!node.patterns.empty()) throw GrammarError("a pattern or format beside enum or const is not kept");
    return size_within(code_points_of(value.get_ref<const std::string&>()).size(), node.min_length,
                       node.max_length);
  }
  if (value.is_array()) return array_holds(root, node, value, depth);
  return !value.is_object() || object_holds(root, node, value, depth);
}

bool equal(const Json& a, const Json& b) {
  if (a.is_number() && b.is_number()) return a == b;
  if (a.type() != b.type()) return false;
  return a.is_structured() ? canonical(a) == canonical(b) : a == b;
}

std::string canonical(const Json& value) {
  if (value.is_number_float()) {
    const double number = value.get<double>();
    const bool whole = std::floor(number) == number && std::abs(number) < 9e15;
    return whole ? std::to_string(static_cast<std::int64_t>(number)) : value.dump();
  }
  if (!value.is_structured()) return value.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::vector<std::string> parts;
  for (const auto& item : value.items()) {
    const std::string name =
        value.is_object() ? Json(item.key()).dump(-1, ' ', false, Json::error_handler_t::replace) + ":" : "";
    parts.push_back(name + canonical(item.value()));
  }
  if (value.is_object()) std::sort(parts.begin(), parts.end());
  std::string text(1, value.is_object() ? '{' : '[');
  for (const std::string& part : parts) text += part + ",";
  return text + (value.is_object() ? '}' : ']');
}

bool holds(const Json& root, const Json& schema, const Json& value, int depth) {
  if (depth > max_holds_depth) throw GrammarError("a schema that refers to itself without end is not kept");
  const SchemaNode whole(root, schema);
  SchemaNode own = whole;
  own.choices.clear();
  if (!node_holds(root, own, value, depth)) return false;
  return std::all_of(whole.choices.begin(), whole.choices.end(), [&](const Json& branches) {
    return std::any_of(branches.begin(), branches.end(),
                       [&](const Json& branch) { return holds(root, branch, value, depth + 1); });
  });
}

bool disjoint(const Json& root, const Json& a, const Json& b, int depth) {
  const std::vector<SchemaNode> of_a = variants(SchemaNode(root, a)), of_b = variants(SchemaNode(root, b));
  if (of_a.empty() || of_b.empty()) return false;
  return std::all_of(of_a.begin(), of_a.end(), [&](const SchemaNode& one) {
    return std::all_of(of_b.begin(), of_b.end(),
                       [&](const SchemaNode& other) { return nodes_disjoint(root, one, other, depth); });
  });
}

}  // namespace switchyard::grammar

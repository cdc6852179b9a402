// Filters of lists and mappings.
#include <fmt/format.h>

#include <algorithm>

#include "chat/jinja/attribute_path.h"
#include "chat/jinja/interpreter.h"

namespace switchyard::jinja {

namespace {
namespace list_filters {

Value length(Interpreter&, const Value& value, const Arguments&) {
  const auto size = length_of(value);
  if (!size) fail_other(fmt::format("object of type '{}' has no len()", type_name(value)));
  return *size;
}

Value list(Interpreter&, const Value& value, const Arguments&) {
  return make_list(items_of(value));
}

Value first(Interpreter&, const Value& value, const Arguments&) {
  const auto cursor = iterate(value);
  Value out;
  return cursor->next(out) ? out : undefined_value("No first item, sequence was empty.");
}

Value last(Interpreter&, const Value& value, const Arguments&) {
  if (const Object* object = value.object(); object != nullptr && !object->length()) {
    fail_other(fmt::format("'{}' object is not reversible", type_name(value)));
  }
  std::vector<Value> items = items_of(value);
  return items.empty() ? undefined_value("No last item, sequence was empty.") : items.back();
}

Value reverse(Interpreter&, const Value& value, const Arguments&) {
  if (value.is_text()) return slice(value, Value(), Value(), -1);
  std::vector<Value> items = items_of(value);
  std::reverse(items.begin(), items.end());
  return make_iterator(std::move(items));
}

Value join(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Parameters parameters("join", arguments, {"d", "attribute"});
  const Text separator = parameters.has(0) ? str(parameters[0]) : Text();
  Text out;
  bool is_first = true;
  const auto cursor = iterate(value);
  for (Value each; cursor->next(each); is_first = false) {
    Budget::count_steps();
    if (!is_first) out.append(separator);
    append_str(out, parameters.has_value(1) ? AttributePath(parameters[1]).of(interpreter, each) : each);
  }
  return out;
}

Value items(Interpreter&, const Value& value, const Arguments&) {
  if (value.is_undefined()) return make_iterator({});
  if (value.mapping() == nullptr) fail_other("Can only get item pairs from a mapping.");
  std::vector<Value> out;
  for (const auto& [key, each] : value.mapping()->entries()) out.emplace_back(make_tuple({key, each}));
  return make_iterator(std::move(out));
}

// A key to sort by: texts without their case, unless it counts.
Value sort_key(const Value& value, bool case_sensitive) {
  if (case_sensitive || !value.is_text()) return value;
  return Text(lower(value.text()->bytes));
}

void sort_by_keys(std::vector<Value>& items, const std::vector<Value>& keys, bool descending) {
  std::vector<std::size_t> order(items.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return descending ? compare(keys[b], keys[a]) < 0 : compare(keys[a], keys[b]) < 0;
  });
  std::vector<Value> sorted;
  for (const std::size_t at : order) sorted.push_back(items[at]);
  items = std::move(sorted);
}

Value dictsort(Interpreter&, const Value& value, const Arguments& arguments) {
  const Parameters parameters("dictsort", arguments, {"case_sensitive", "by", "reverse"});
  const std::string by = parameters.text(1, "key").bytes;
  if (by != "key" && by != "value") fail_other("You can only sort by either \"key\" or \"value\"");
  if (value.mapping() == nullptr) fail_type("dictsort takes a mapping", value);
  std::vector<Value> pairs, keys;
  for (const auto& [key, each] : value.mapping()->entries()) {
    pairs.emplace_back(make_tuple({key, each}));
    keys.push_back(sort_key(by == "key" ? key : each, parameters.flag(0, false)));
  }
  sort_by_keys(pairs, keys, parameters.flag(2, false));
  return make_list(std::move(pairs));
}

Value sort(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Parameters parameters("sort", arguments, {"reverse", "case_sensitive", "attribute"});
  std::vector<Value> sorted = items_of(value), keys;
  const bool case_sensitive = parameters.flag(1, false);
  for (const Value& each : sorted) {
    if (!parameters.has_value(2)) {
      keys.push_back(sort_key(each, case_sensitive));
      continue;
    }
    std::vector<Value> parts;
    for (const AttributePath& path : attribute_paths(parameters[2])) {
      parts.push_back(sort_key(path.of(interpreter, each), case_sensitive));
    }
    keys.emplace_back(make_list(std::move(parts)));
  }
  sort_by_keys(sorted, keys, parameters.flag(0, false));
  return make_list(std::move(sorted));
}

Value unique(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Parameters parameters("unique", arguments, {"case_sensitive", "attribute"});
  std::vector<Value> out;
  const auto seen = make_mapping();
  for (const Value& each : items_of(value)) {
    const Value key =
        sort_key(parameters.has_value(1) ? AttributePath(parameters[1]).of(interpreter, each) : each,
                 parameters.flag(0, false));
    if (seen->find(key) != nullptr) continue;
    seen->set(key, Value());
    out.push_back(each);
  }
  return make_iterator(std::move(out));
}

Value extreme(Interpreter& interpreter, const char* name, const Value& value, const Arguments& arguments,
              int sign) {
  const Parameters parameters(name, arguments, {"case_sensitive", "attribute"});
  const std::vector<Value> all = items_of(value);
  if (all.empty()) return undefined_value("No aggregated item, sequence was empty.");
  const auto key = [&](const Value& each) {
    return sort_key(parameters.has_value(1) ? AttributePath(parameters[1]).of(interpreter, each) : each,
                    parameters.flag(0, false));
  };
  std::size_t best = 0;
  Value best_key = key(all[0]);
  for (std::size_t i = 1; i < all.size(); ++i) {
    Value other = key(all[i]);
    if (compare(other, best_key, sign < 0 ? "<" : ">") * sign <= 0) continue;
    best = i;
    best_key = std::move(other);
  }
  return all[best];
}

Value min(Interpreter& interpreter, const Value& value, const Arguments& a) {
  return extreme(interpreter, "min", value, a, -1);
}
Value max(Interpreter& interpreter, const Value& value, const Arguments& a) {
  return extreme(interpreter, "max", value, a, 1);
}

Value sum(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Parameters parameters("sum", arguments, {"attribute", "start"});
  Value total = parameters.has(1) ? parameters[1] : Value(0);
  if (total.is_text()) fail_other("sum() can't sum strings [use ''.join(seq) instead]");
  const auto cursor = iterate(value);
  for (Value each; cursor->next(each);) {
    Budget::count_steps();
    total = add(total, parameters.has_value(0) ? AttributePath(parameters[0]).of(interpreter, each) : each);
  }
  return total;
}

Value batch(Interpreter&, const Value& value, const Arguments& arguments) {
  const Parameters parameters("batch", arguments, {"linecount", "fill_with"}, 1);
  const Integer count = parameters.integer(0, 1);
  std::vector<Value> batches, row;
  for (Value& each : items_of(value)) {
    if (static_cast<Integer>(row.size()) == count) {
      batches.emplace_back(make_list(std::move(row)));
      row.clear();
    }
    row.push_back(std::move(each));
  }
  if (!row.empty()) {
    if (parameters.has_value(1)) {
      Budget::check_bytes(to_size(count) * sizeof(Value));
      while (static_cast<Integer>(row.size()) < count) row.push_back(parameters[1]);
    }
    batches.emplace_back(make_list(std::move(row)));
  }
  return make_iterator(std::move(batches));
}

Value slices(Interpreter&, const Value& value, const Arguments& arguments) {
  const Parameters parameters("slice", arguments, {"slices", "fill_with"}, 1);
  const Integer wanted = parameters.integer(0, 1);
  if (wanted == 0) fail_other("integer division or modulo by zero");
  const std::vector<Value> all = items_of(value);
  const std::size_t count = to_size(wanted);
  Budget::check_bytes(count * sizeof(Value));
  std::vector<Value> out;
  if (count == 0) return make_iterator(std::move(out));
  const std::size_t each = all.size() / count, longer = all.size() % count;
  for (std::size_t i = 0, at = 0; i < count; ++i) {
    const std::size_t size = each + (i < longer ? 1 : 0);
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(at);
    std::vector<Value> part(begin, begin + static_cast<std::ptrdiff_t>(size));
    if (parameters.has_value(1) && i >= longer) part.push_back(parameters[1]);
    out.emplace_back(make_list(std::move(part)));
    at += size;
  }
  return make_iterator(std::move(out));
}

Value groupby(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Parameters parameters("groupby", arguments, {"attribute", "default", "case_sensitive"}, 1);
  const AttributePath path(parameters[0], parameters.has(1) ? parameters[1] : Value());
  std::vector<Value> sorted = items_of(value), keys;
  const auto key = [&](const Value& each) {
    return sort_key(path.of(interpreter, each), parameters.flag(2, false));
  };
  for (const Value& each : sorted) keys.push_back(key(each));
  sort_by_keys(sorted, keys, false);
  std::vector<Value> out, group;
  const auto flush = [&] {
    if (group.empty()) return;
    Value grouper = path.of(interpreter, group.front());
    out.emplace_back(
        std::make_shared<const Tuple>(std::vector<Value>{grouper, make_list(std::move(group))}, true));
    group.clear();
  };
  Value current;
  for (const Value& each : sorted) {
    Value next = key(each);
    if (!group.empty() && !equal(next, current)) flush();
    current = std::move(next);
    group.push_back(each);
  }
  flush();
  return make_list(std::move(out));
}

Value attr(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Parameters parameters("attr", arguments, {"name"}, 1);
  const std::string name = str(parameters[0]).bytes;
  // Only what Python's getattr finds: a mapping's items are none.
  if (value.mapping() != nullptr && find_method(value, name) == nullptr && name.substr(0, 2) != "__") {
    return undefined_value(fmt::format("'dict object' has no attribute '{}'", name));
  }
  return interpreter.attribute(value, name);
}

Value otherwise(Interpreter&, const Value& value, const Arguments& arguments) {
  const Parameters parameters("default", arguments, {"default_value", "boolean"});
  if (value.is_undefined() || (parameters.flag(1, false) && !is_true(value))) {
    return parameters.has(0) ? parameters[0] : Value("");
  }
  return value;
}

constexpr FilterEntry kFilters[] = {
    {"length", length},   {"count", length},    {"list", list},   {"first", first},       {"last", last},
    {"reverse", reverse}, {"join", join},       {"items", items}, {"dictsort", dictsort}, {"sort", sort},
    {"unique", unique},   {"min", min},         {"max", max},     {"sum", sum},           {"batch", batch},
    {"slice", slices},    {"groupby", groupby}, {"attr", attr},   {"default", otherwise}, {"d", otherwise},
};

}  // namespace list_filters
}  // namespace

std::optional<Filter> find_list_filter(std::string_view name) {
  const FilterEntry* entry = find_entry(list_filters::kFilters, name);
  return entry == nullptr ? std::nullopt : std::optional(entry->filter);
}

Filter find_filter(std::string_view name) {
  for (const auto find :
       {find_text_filter, find_list_filter, find_choice_filter, find_number_filter, find_layout_filter}) {
    if (const auto found = find(name)) return *found;
  }
  return nullptr;
}

}  // namespace switchyard::jinja

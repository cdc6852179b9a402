// Methods of Python's list, tuple and dict.
#include <fmt/format.h>

#include <algorithm>

#include "chat/jinja/interpreter.h"

namespace switchyard::jinja {

namespace {
namespace list_methods {

List& own(const Value& self) {
  return *self.list();
}
Mapping& mapping_of(const Value& self) {
  return *self.mapping();
}

// A list or mapping that is changed may come to hold itself.
void changes(Interpreter& interpreter, const Value& self) {
  if (const auto* list = self.shared_list()) {
    interpreter.end_with_rendering([weak = std::weak_ptr<List>(*list)] {
      if (const auto alive = weak.lock()) bury(alive->items);
    });
  } else if (const auto* mapping = self.shared_mapping()) {
    interpreter.end_with_rendering([weak = std::weak_ptr<Mapping>(*mapping)] {
      if (const auto alive = weak.lock()) alive->clear();
    });
  }
}

std::size_t checked_index(const Value& self, Integer at, const char* message) {
  const auto size = static_cast<Integer>(own(self).items.size());
  if (at < 0) at += size;
  if (at < 0 || at >= size) fail_other(message);
  return static_cast<std::size_t>(at);
}

Value append(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Parameters parameters("append", arguments, {"object"}, 1);
  changes(interpreter, self);
  own(self).push_back(parameters[0]);
  return Value();
}

Value extend(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Parameters parameters("extend", arguments, {"iterable"}, 1);
  changes(interpreter, self);
  for (Value& each : items_of(parameters[0])) own(self).push_back(std::move(each));
  return Value();
}

Value insert(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Parameters parameters("insert", arguments, {"index", "object"}, 2);
  changes(interpreter, self);
  const auto size = static_cast<Integer>(own(self).items.size());
  Integer at = parameters.integer(0, 0);
  if (at < 0) at += size;
  at = std::clamp<Integer>(at, 0, size);
  own(self).push_back(parameters[1]);
  auto& items = own(self).items;
  std::rotate(items.begin() + static_cast<std::ptrdiff_t>(at), items.end() - 1, items.end());
  Budget::count_steps(items.size() / 16);
  return Value();
}

Value pop(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters("pop", arguments, {"index"});
  auto& items = own(self).items;
  if (items.empty()) fail_other("pop from empty list");
  const std::size_t at = checked_index(self, parameters.integer(0, -1), "pop index out of range");
  Value out = items[at];
  items.erase(items.begin() + static_cast<std::ptrdiff_t>(at));
  Budget::count_steps(items.size() / 16);
  return out;
}

std::size_t position_of(const std::vector<Value>& items, const Value& value) {
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (equal(items[i], value)) return i;
  }
  fail_other("the value is not in the list");
}

Value remove(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters("remove", arguments, {"value"}, 1);
  auto& items = own(self).items;
  items.erase(items.begin() + static_cast<std::ptrdiff_t>(position_of(items, parameters[0])));
  return Value();
}

Value clear(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters none("clear", arguments, {});
  if (self.mapping() != nullptr) {
    mapping_of(self).clear();
  } else {
    bury(own(self).items);
    own(self).items.clear();
  }
  return Value();
}

Value copy(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters none("copy", arguments, {});
  if (self.list() != nullptr) return make_list(items_of(self));
  auto out = make_mapping();
  for (const auto& [key, value] : mapping_of(self).entries()) out->set(key, value);
  return out;
}

Value count(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters("count", arguments, {"value"}, 1);
  std::size_t out = 0;
  for (const Value& each : *self.items()) out += equal(each, parameters[0]) ? 1 : 0;
  return out;
}

Value index(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters("index", arguments, {"value"}, 1);
  return position_of(*self.items(), parameters[0]);
}

Value reverse(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters none("reverse", arguments, {});
  std::reverse(own(self).items.begin(), own(self).items.end());
  Budget::count_steps(own(self).items.size() / 16);
  return Value();
}

Value sort(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters("sort", arguments, {"reverse"});
  std::vector<Value> items = own(self).items;
  if (parameters.flag(0, false)) {
    std::stable_sort(items.begin(), items.end(),
                     [](const Value& a, const Value& b) { return compare(a, b) > 0; });
  } else {
    std::stable_sort(items.begin(), items.end(),
                     [](const Value& a, const Value& b) { return compare(a, b) < 0; });
  }
  own(self).items = std::move(items);
  return Value();
}

Value get(Interpreter&, const Value& self, const Arguments& arguments) {
  if (!arguments.named.empty()) fail_other("dict.get() takes no keyword arguments");
  const Parameters parameters("get", arguments, {"key", "default"}, 1);
  const Value* found = mapping_of(self).find(parameters[0]);
  return found == nullptr ? parameters[1] : *found;
}

std::vector<Value> all_keys(const Value& self) {
  std::vector<Value> out;
  for (const auto& [key, value] : mapping_of(self).entries()) out.push_back(key);
  return out;
}

Value keys(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters none("keys", arguments, {});
  return make_object<View>("dict_keys", all_keys(self));
}

Value values(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters none("values", arguments, {});
  std::vector<Value> out;
  for (const auto& [key, value] : mapping_of(self).entries()) out.push_back(value);
  return make_object<View>("dict_values", std::move(out));
}

Value items(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters none("items", arguments, {});
  std::vector<Value> out;
  for (const auto& [key, value] : mapping_of(self).entries()) out.emplace_back(make_tuple({key, value}));
  return make_object<View>("dict_items", std::move(out));
}

Value mapping_pop(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters("pop", arguments, {"key", "default"}, 1);
  const Value* found = mapping_of(self).find(parameters[0]);
  if (found == nullptr) {
    if (!parameters.has(1)) fail_other(fmt::format("KeyError: {}", str(parameters[0]).bytes));
    return parameters[1];
  }
  Value out = *found;
  mapping_of(self).erase(parameters[0]);
  return out;
}

Value popitem(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters none("popitem", arguments, {});
  if (mapping_of(self).entries().empty()) fail_other("popitem(): dictionary is empty");
  const auto last = mapping_of(self).entries().back();
  mapping_of(self).erase(last.first);
  return make_tuple({last.first, last.second});
}

Value setdefault(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  const Parameters parameters("setdefault", arguments, {"key", "default"}, 1);
  if (const Value* found = mapping_of(self).find(parameters[0])) return *found;
  changes(interpreter, self);
  mapping_of(self).set(parameters[0], parameters[1]);
  return parameters[1];
}

Value update(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  changes(interpreter, self);
  const Value more = interpreter.call(*find_function("dict"), arguments);
  for (const auto& [key, value] : more.mapping()->entries()) mapping_of(self).set(key, value);
  return Value();
}

constexpr MethodEntry kListMethods[] = {
    {"append", append, true}, {"extend", extend, true}, {"insert", insert, true},   {"pop", pop, true},
    {"remove", remove, true}, {"clear", clear, true},   {"reverse", reverse, true}, {"sort", sort, true},
    {"copy", copy},           {"count", count},         {"index", index},
};
constexpr MethodEntry kTupleMethods[] = {{"count", count}, {"index", index}};
constexpr MethodEntry kMappingMethods[] = {
    {"get", get},
    {"keys", keys},
    {"values", values},
    {"items", items},
    {"copy", copy},
    {"pop", mapping_pop, true},
    {"popitem", popitem, true},
    {"setdefault", setdefault, true},
    {"update", update, true},
    {"clear", clear, true},
};

}  // namespace list_methods
}  // namespace

const MethodEntry* find_method(const Value& value, std::string_view name) {
  if (value.is_text()) {
    const MethodEntry* const own = value.text()->is_markup ? find_markup_method(name) : nullptr;
    return own != nullptr ? own : find_text_method(name);
  }
  if (value.list() != nullptr) return find_entry(list_methods::kListMethods, name);
  if (value.tuple() != nullptr) return find_entry(list_methods::kTupleMethods, name);
  if (value.mapping() != nullptr) return find_entry(list_methods::kMappingMethods, name);
  return nullptr;
}

}  // namespace switchyard::jinja

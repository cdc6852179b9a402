// Python's truth, equality, order, `in`, length and iteration.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "chat/jinja/value.h"

namespace switchyard::jinja {

namespace {

bool equal_items(const std::vector<Value>& a, const std::vector<Value>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!equal(a[i], b[i])) return false;
  }
  return true;
}

bool equal_mappings(const Mapping& a, const Mapping& b) {
  if (a.entries().size() != b.entries().size()) return false;
  for (const auto& [key, value] : a.entries()) {
    const Value* other = b.find(key);
    if (other == nullptr || !equal(value, *other)) return false;
  }
  return true;
}

bool is_numeric(const Value& value) {
  return value.integer().has_value() || value.real() != nullptr;
}

bool equal_numbers(const Value& a, const Value& b) {
  if (a.integer() && b.integer()) return *a.integer() == *b.integer();
  return *a.number() == *b.number();
}

[[noreturn]] void fail_order(const Value& a, const Value& b, const char* sign) {
  refuse_undefined(a);
  refuse_undefined(b);
  fail_other(
      fmt::format("'{}' not supported between instances of '{}' and '{}'", sign, type_name(a), type_name(b)));
}

template <typename T>
int sign_of(const T& a, const T& b) {
  return a < b ? -1 : (b < a ? 1 : 0);
}

int compare_items(const std::vector<Value>& a, const std::vector<Value>& b, const char* sign) {
  const std::size_t common = std::min(a.size(), b.size());
  for (std::size_t i = 0; i < common; ++i) {
    if (!equal(a[i], b[i])) return compare(a[i], b[i], sign);
  }
  return sign_of(a.size(), b.size());
}

struct ListCursor : Cursor {
  explicit ListCursor(Value held_) : held(std::move(held_)) {}
  bool next(Value& value) override {
    const std::vector<Value>& items = *held.items();
    if (at >= items.size()) return false;
    value = items[at++];
    return true;
  }
  Value held;
  std::size_t at = 0;
};

struct CharacterCursor : Cursor {
  explicit CharacterCursor(Value held_) : held(std::move(held_)) {}
  bool next(Value& value) override {
    const Text& text = *held.text();
    if (at >= text.size()) return false;
    const std::size_t end = code_point_at(text.bytes, at).next;
    value = text.part(at, end);
    at = end;
    return true;
  }
  Value held;
  std::size_t at = 0;
};

struct KeyCursor : Cursor {
  explicit KeyCursor(Value held_) : held(std::move(held_)) {}
  bool next(Value& value) override {
    const auto& entries = held.mapping()->entries();
    if (at >= entries.size()) return false;
    value = entries[at++].first;
    return true;
  }
  Value held;
  std::size_t at = 0;
};

}  // namespace

bool is_true(const Value& value) {
  if (value.is_undefined() || value.is_none()) return false;
  if (const bool* flag = value.boolean()) return *flag;
  if (const auto number = value.integer()) return *number != 0;
  if (const double* number = value.real()) return *number != 0;
  if (const Text* text = value.text()) return !text->bytes.empty();
  if (const auto* items = value.items()) return !items->empty();
  if (const Mapping* mapping = value.mapping()) return !mapping->entries().empty();
  return value.object()->length().value_or(1) != 0;
}

bool equal(const Value& a, const Value& b) {
  Budget::count_steps();
  if (is_numeric(a)) return is_numeric(b) && equal_numbers(a, b);
  if (a.is_text()) {
    if (!b.is_text()) return false;
    Budget::count_text(a.text()->size());
    return a.text()->bytes == b.text()->bytes;
  }
  if (a.is_none()) return b.is_none();
  if (a.is_undefined()) return b.is_undefined();
  Budget::check_stack();
  if (a.identity() == b.identity()) return true;
  if (a.list() != nullptr) return b.list() != nullptr && equal_items(a.list()->items, b.list()->items);
  if (a.tuple() != nullptr) return b.tuple() != nullptr && equal_items(a.tuple()->items, b.tuple()->items);
  return a.mapping() != nullptr && b.mapping() != nullptr && equal_mappings(*a.mapping(), *b.mapping());
}

int compare(const Value& a, const Value& b, const char* sign) {
  Budget::count_steps();
  Budget::check_stack();
  if (a.integer() && b.integer()) return sign_of(*a.integer(), *b.integer());
  if (is_numeric(a) && is_numeric(b)) return sign_of(*a.number(), *b.number());
  if (a.is_text() && b.is_text()) {
    Budget::count_text(a.text()->size());
    return sign_of(a.text()->bytes, b.text()->bytes);  // UTF-8 is in the order of code points
  }
  if (a.list() != nullptr && b.list() != nullptr)
    return compare_items(a.list()->items, b.list()->items, sign);
  if (a.tuple() != nullptr && b.tuple() != nullptr) {
    return compare_items(a.tuple()->items, b.tuple()->items, sign);
  }
  fail_order(a, b, sign);
}

bool contains(const Value& container, const Value& item) {
  if (const Text* text = container.text()) {
    if (!item.is_text()) {
      fail_type(fmt::format("'in <string>' requires string as left operand, not {}", type_name(item)), item);
    }
    Budget::count_text(text->size());
    return text->bytes.find(item.text()->bytes) != std::string::npos;
  }
  if (const Mapping* mapping = container.mapping()) return mapping->find(item) != nullptr;
  const auto cursor = try_iterate(container);
  if (cursor == nullptr)
    fail_other(fmt::format("argument of type '{}' is not iterable", type_name(container)));
  for (Value each; cursor->next(each);) {
    if (equal(each, item)) return true;
  }
  return false;
}

std::optional<std::size_t> length_of(const Value& value) {
  if (value.is_undefined()) return 0;
  if (const Text* text = value.text()) {
    Budget::count_text(text->size());
    return count_code_points(text->bytes);
  }
  if (const auto* items = value.items()) return items->size();
  if (const Mapping* mapping = value.mapping()) return mapping->entries().size();
  if (const Object* object = value.object()) return object->length();
  return std::nullopt;
}

std::shared_ptr<Cursor> try_iterate(const Value& value) {
  if (value.is_undefined()) return cursor_of({});
  if (value.is_text()) return std::make_shared<CharacterCursor>(value);
  if (value.is_sequence()) return std::make_shared<ListCursor>(value);
  if (value.mapping() != nullptr) return std::make_shared<KeyCursor>(value);
  if (Object* object = value.object()) return object->iterate();
  return nullptr;
}

std::shared_ptr<Cursor> iterate(const Value& value) {
  auto cursor = try_iterate(value);
  if (cursor == nullptr) fail_other(fmt::format("'{}' object is not iterable", type_name(value)));
  return cursor;
}

std::vector<Value> items_of(const Value& value) {
  if (const auto* items = value.items()) {
    Budget::check_bytes(items->size() * sizeof(Value));
    return *items;
  }
  std::vector<Value> out;
  const auto cursor = iterate(value);
  for (Value each; cursor->next(each);) {
    Budget::count_steps();
    if (out.size() % 1024 == 0) Budget::check_bytes(out.size() * sizeof(Value));
    out.push_back(std::move(each));
  }
  return out;
}

}  // namespace switchyard::jinja

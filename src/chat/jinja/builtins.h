// Filters, tests, methods and functions by their names.
#pragma once

#include <optional>
#include <string_view>

#include "chat/jinja/value.h"

namespace switchyard::jinja {

using Filter = Value (*)(Interpreter& interpreter, const Value& subject, const Arguments& arguments);
using Test = bool (*)(Interpreter& interpreter, const Value& subject, const Arguments& arguments);

struct FilterEntry {
  std::string_view name;
  Filter filter;
};
struct TestEntry {
  std::string_view name;
  Test test;
};
struct MethodEntry {
  std::string_view name;
  Filter method;
  bool changes = false;  // the list or mapping itself
};

// Null where none has the name.
Filter find_filter(std::string_view name);
Test find_test(std::string_view name);
const MethodEntry* find_method(const Value& value, std::string_view name);
std::optional<Value> find_function(std::string_view name);
bool is_function(std::string_view name);

// The parts of the tables, one a file.
std::optional<Filter> find_text_filter(std::string_view name);
std::optional<Filter> find_layout_filter(std::string_view name);
std::optional<Filter> find_list_filter(std::string_view name);
std::optional<Filter> find_choice_filter(std::string_view name);
std::optional<Filter> find_number_filter(std::string_view name);
const MethodEntry* find_text_method(std::string_view name);
const MethodEntry* find_split_method(std::string_view name);
const MethodEntry* find_markup_method(std::string_view name);

template <typename Entries>
auto find_entry(const Entries& entries, std::string_view name) -> decltype(&*std::begin(entries)) {
  for (const auto& entry : entries) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

// operators.cc
enum class Arithmetic;
Value add(const Value& a, const Value& b);
Value subtract(const Value& a, const Value& b);
Value multiply(const Value& a, const Value& b);
Value divide(const Value& a, const Value& b);
Value floor_divide(const Value& a, const Value& b);
Value modulo(Interpreter& interpreter, const Value& a, const Value& b);
Value power(const Value& a, const Value& b);
Value negative(const Value& a);
Value positive(const Value& a);
// a[start:stop:step]; the ends may be none.
Value slice(const Value& subject, const Value& start, const Value& stop, const Value& step);

// json_text.cc: json.dumps and json.loads.
struct JsonStyle {
  bool ensure_ascii = false, sort_keys = false;
  std::optional<std::string> indent;
  std::string item_separator = ", ", key_separator = ": ";
};
Text json_text(const Value& value, const JsonStyle& style);
Value value_of_json(const Json& json, bool is_foreign, const MemberChoices& choices = {});

// format.cc and percent_format.cc: str.format and `%` of a text.
Text formatted(Interpreter& interpreter, const Text& pattern, const Arguments& arguments);
Text percent_formatted(const Text& pattern, const Value& values);
// Returns Python's format(value, specification).
std::string format_value(const Value& value, std::string_view specification);

}  // namespace switchyard::jinja

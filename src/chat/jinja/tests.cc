// Tests: what follows `is`.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "chat/jinja/interpreter.h"

namespace switchyard::jinja {

namespace {
namespace test_functions {

void take_none(const char* name, const Arguments& arguments) {
  const Parameters none(name, arguments, {});
}

Value only_argument(const char* name, const Arguments& arguments) {
  return Parameters(name, arguments, {"other"}, 1)[0];
}

bool is_defined(Interpreter&, const Value& value, const Arguments& arguments) {
  take_none("defined", arguments);
  return !value.is_undefined();
}
bool is_undefined(Interpreter&, const Value& value, const Arguments& arguments) {
  take_none("undefined", arguments);
  return value.is_undefined();
}
bool is_none(Interpreter&, const Value& value, const Arguments& arguments) {
  take_none("none", arguments);
  return value.is_none();
}
bool is_string(Interpreter&, const Value& value, const Arguments& arguments) {
  take_none("string", arguments);
  return value.is_text();
}
bool is_number(Interpreter&, const Value& value, const Arguments& arguments) {
  take_none("number", arguments);
  return value.number().has_value();
}
bool is_boolean(Interpreter&, const Value& value, const Arguments& arguments) {
  take_none("boolean", arguments);
  return value.boolean() != nullptr;
}
bool is_integer(Interpreter&, const Value& value, const Arguments& arguments) {
  take_none("integer", arguments);
  return value.integer() && value.boolean() == nullptr;
}
bool is_float(Interpreter&, const Value& value, const Arguments& arguments) {
  take_none("float", arguments);
  return value.real() != nullptr;
}
bool is_exactly_true(Interpreter&, const Value& value, const Arguments& arguments) {
  take_none("true", arguments);
  return value.boolean() != nullptr && *value.boolean();
}
bool is_exactly_false(Interpreter&, const Value& value, const Arguments& arguments) {
  take_none("false", arguments);
  return value.boolean() != nullptr && !*value.boolean();
}
bool is_mapping(Interpreter&, const Value& value, const Arguments& arguments) {
  take_none("mapping", arguments);
  return value.mapping() != nullptr;
}
bool is_iterable(Interpreter&, const Value& value, const Arguments& arguments) {
  take_none("iterable", arguments);
  return try_iterate(value) != nullptr;
}
// Returns whether a value is a sequence: Python's test only asks for __getitem__, so a mapping is one, too.
bool is_sequence(Interpreter&, const Value& value, const Arguments& arguments) {
  take_none("sequence", arguments);
  if (const Object* object = value.object()) return object->is_sequence();
  return value.is_undefined() || value.is_text() || value.is_sequence() || value.mapping() != nullptr;
}
bool is_callable(Interpreter&, const Value& value, const Arguments& arguments) {
  take_none("callable", arguments);
  return value.is_undefined() || (value.object() != nullptr && value.object()->is_callable());
}

Value remainder(Interpreter& interpreter, const Value& value, const Value& divisor) {
  return modulo(interpreter, value, divisor);
}
bool is_odd(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  take_none("odd", arguments);
  return equal(remainder(interpreter, value, 2), 1);
}
bool is_even(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  take_none("even", arguments);
  return equal(remainder(interpreter, value, 2), 0);
}
bool is_divisible(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Parameters parameters("divisibleby", arguments, {"num"}, 1);
  return equal(remainder(interpreter, value, parameters[0]), 0);
}

bool is_equal(Interpreter&, const Value& value, const Arguments& arguments) {
  return equal(value, only_argument("eq", arguments));
}
bool is_unequal(Interpreter&, const Value& value, const Arguments& arguments) {
  return !equal(value, only_argument("ne", arguments));
}
bool is_less(Interpreter&, const Value& value, const Arguments& arguments) {
  return compare(value, only_argument("lt", arguments), "<") < 0;
}
bool is_less_or_equal(Interpreter&, const Value& value, const Arguments& arguments) {
  return compare(value, only_argument("le", arguments), "<=") <= 0;
}
bool is_greater(Interpreter&, const Value& value, const Arguments& arguments) {
  return compare(value, only_argument("gt", arguments), ">") > 0;
}
bool is_greater_or_equal(Interpreter&, const Value& value, const Arguments& arguments) {
  return compare(value, only_argument("ge", arguments), ">=") >= 0;
}
bool is_in(Interpreter&, const Value& value, const Arguments& arguments) {
  return contains(only_argument("in", arguments), value);
}

bool is_same(Interpreter&, const Value& value, const Arguments& arguments) {
  const Value other = only_argument("sameas", arguments);
  if (type_name(value) != type_name(other)) return false;
  if (value.identity() != nullptr && !value.is_text()) return value.identity() == other.identity();
  return equal(value, other);
}

bool is_upper(Interpreter&, const Value& value, const Arguments& arguments) {
  take_none("upper", arguments);
  const std::string text = str(value).bytes;
  return text == upper(text) && text != lower(text);
}
bool is_lower(Interpreter&, const Value& value, const Arguments& arguments) {
  take_none("lower", arguments);
  const std::string text = str(value).bytes;
  return text == lower(text) && text != upper(text);
}
bool is_escaped(Interpreter&, const Value& value, const Arguments& arguments) {
  take_none("escaped", arguments);
  return value.is_text() && value.text()->is_markup;
}
bool is_filter(Interpreter&, const Value& value, const Arguments& arguments) {
  take_none("filter", arguments);
  return value.is_text() && find_filter(value.text()->bytes) != nullptr;
}
bool is_test(Interpreter&, const Value& value, const Arguments& arguments) {
  take_none("test", arguments);
  return value.is_text() && find_test(value.text()->bytes) != nullptr;
}

constexpr TestEntry kTests[] = {
    {"defined", is_defined},
    {"undefined", is_undefined},
    {"none", is_none},
    {"string", is_string},
    {"number", is_number},
    {"boolean", is_boolean},
    {"integer", is_integer},
    {"float", is_float},
    {"true", is_exactly_true},
    {"false", is_exactly_false},
    {"mapping", is_mapping},
    {"iterable", is_iterable},
    {"sequence", is_sequence},
    {"callable", is_callable},
    {"odd", is_odd},
    {"even", is_even},
    {"divisibleby", is_divisible},
    {"eq", is_equal},
    {"equalto", is_equal},
    {"==", is_equal},
    {"ne", is_unequal},
    {"!=", is_unequal},
    {"lt", is_less},
    {"lessthan", is_less},
    {"<", is_less},
    {"le", is_less_or_equal},
    {"<=", is_less_or_equal},
    {"gt", is_greater},
    {"greaterthan", is_greater},
    {">", is_greater},
    {"ge", is_greater_or_equal},
    {">=", is_greater_or_equal},
    {"in", is_in},
    {"sameas", is_same},
    {"upper", is_upper},
    {"lower", is_lower},
    {"escaped", is_escaped},
    {"filter", is_filter},
    {"test", is_test},
};

}  // namespace test_functions
}  // namespace

Test find_test(std::string_view name) {
  const TestEntry* entry = find_entry(test_functions::kTests, name);
  return entry == nullptr ? nullptr : entry->test;
}

}  // namespace switchyard::jinja

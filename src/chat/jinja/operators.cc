// Arithmetic with Python's rules.
#include <fmt/format.h>

#include <cmath>

#include "chat/jinja/interpreter.h"
#include "chat/jinja/markup.h"

namespace switchyard::jinja {

namespace {

[[noreturn]] void fail_operands(const char* sign, const Value& a, const Value& b) {
  refuse_undefined(a);
  refuse_undefined(b);
  fail_other(
      fmt::format("unsupported operand type(s) for {}: '{}' and '{}'", sign, type_name(a), type_name(b)));
}

std::vector<Value> joined_items(const std::vector<Value>& a, const std::vector<Value>& b) {
  Budget::check_bytes((a.size() + b.size()) * sizeof(Value));
  std::vector<Value> out = a;
  out.insert(out.end(), b.begin(), b.end());
  return out;
}

std::vector<Value> repeated_items(const std::vector<Value>& items, std::size_t times) {
  if (items.empty()) return {};
  Budget::check_bytes(times > (std::size_t{1} << 32) ? SIZE_MAX : items.size() * sizeof(Value) * times);
  std::vector<Value> out;
  out.reserve(items.size() * times);
  for (std::size_t i = 0; i < times; ++i) out.insert(out.end(), items.begin(), items.end());
  return out;
}

Value repeated(const Value& value, Integer count) {
  const std::size_t times = to_size(count);
  if (const Text* text = value.text()) {
    if (text->bytes.empty()) return value;
    Budget::check_bytes(times > (std::size_t{1} << 32) ? SIZE_MAX : text->size() * times);
    Text out;
    for (std::size_t i = 0; i < times; ++i) out.append(*text);
    Budget::count_text(out.size());
    return like(value, std::move(out));
  }
  if (value.list() != nullptr) return make_list(repeated_items(value.list()->items, times));
  return make_tuple(repeated_items(value.tuple()->items, times));
}

bool is_repeatable(const Value& value) {
  return value.is_text() || value.is_sequence();
}

Integer floor_quotient(Integer a, Integer b) {
  const Integer quotient = a / b;
  return a % b != 0 && (a % b < 0) != (b < 0) ? quotient - 1 : quotient;
}

double floor_remainder(double a, double b) {
  double remainder = std::fmod(a, b);
  if (remainder != 0 && (remainder < 0) != (b < 0)) remainder += b;
  return remainder == 0 ? std::copysign(0.0, b) : remainder;
}

void refuse_zero(double divisor, const char* message) {
  if (divisor == 0) fail_other(message);
}

Integer multiplied(Integer a, Integer b) {
  Integer out = 0;
  if (__builtin_mul_overflow(a, b, &out)) fail_other("an integer has more than 64 bits");
  return whole(out);
}

Value integer_power(Integer base, Integer exponent) {
  if (exponent < 0) {
    refuse_zero(static_cast<double>(base), "0.0 cannot be raised to a negative power");
    return std::pow(static_cast<double>(base), static_cast<double>(exponent));
  }
  if (base == 0 || base == 1) return exponent == 0 ? Value(1) : Value(base);
  if (base == -1) return exponent % 2 == 0 ? 1 : -1;
  Integer out = 1;
  for (Integer i = 0; i < exponent; ++i) out = multiplied(out, base);
  return out;
}

}  // namespace

Value add(const Value& a, const Value& b) {
  if (a.integer() && b.integer()) return whole(*a.integer() + *b.integer());
  if (a.number() && b.number()) return *a.number() + *b.number();
  if (a.is_text() && b.is_text()) {
    Text out;
    out.bytes.reserve(a.text()->size() + b.text()->size());
    Budget::count_text(a.text()->size() + b.text()->size());
    const bool markup = is_markup(a) || is_markup(b);
    out.append(markup ? escaped(a) : *a.text());
    out.append(markup ? escaped(b) : *b.text());
    return as_markup(std::move(out), markup);
  }
  if (a.list() != nullptr && b.list() != nullptr)
    return make_list(joined_items(a.list()->items, b.list()->items));
  if (a.tuple() != nullptr && b.tuple() != nullptr)
    return make_tuple(joined_items(a.tuple()->items, b.tuple()->items));
  if (a.is_text()) {
    refuse_undefined(b);
    fail_other(fmt::format("can only concatenate str (not \"{}\") to str", type_name(b)));
  }
  fail_operands("+", a, b);
}

Value subtract(const Value& a, const Value& b) {
  if (a.integer() && b.integer()) return whole(*a.integer() - *b.integer());
  if (a.number() && b.number()) return *a.number() - *b.number();
  fail_operands("-", a, b);
}

Value multiply(const Value& a, const Value& b) {
  if (a.integer() && b.integer()) return multiplied(*a.integer(), *b.integer());
  if (a.number() && b.number()) return *a.number() * *b.number();
  if (is_repeatable(a) && b.integer()) return repeated(a, *b.integer());
  if (is_repeatable(b) && a.integer()) return repeated(b, *a.integer());
  fail_operands("*", a, b);
}

Value divide(const Value& a, const Value& b) {
  if (!a.number() || !b.number()) fail_operands("/", a, b);
  refuse_zero(*b.number(), "division by zero");
  return *a.number() / *b.number();
}

Value floor_divide(const Value& a, const Value& b) {
  if (!a.number() || !b.number()) fail_operands("//", a, b);
  refuse_zero(*b.number(), "integer division or modulo by zero");
  if (a.integer() && b.integer()) return whole(floor_quotient(*a.integer(), *b.integer()));
  const double x = *a.number(), y = *b.number();
  return std::floor((x - floor_remainder(x, y)) / y + 0.25);
}

Value modulo(Interpreter&, const Value& a, const Value& b) {
  if (a.is_text()) return percent_formatted(*a.text(), b);
  if (!a.number() || !b.number()) fail_operands("%", a, b);
  refuse_zero(*b.number(), "integer modulo by zero");
  if (a.integer() && b.integer()) {
    return whole(*a.integer() - floor_quotient(*a.integer(), *b.integer()) * *b.integer());
  }
  return floor_remainder(*a.number(), *b.number());
}

Value power(const Value& a, const Value& b) {
  if (a.integer() && b.integer()) return integer_power(*a.integer(), *b.integer());
  if (!a.number() || !b.number()) fail_operands("** or pow()", a, b);
  if (*b.number() < 0) refuse_zero(*a.number(), "0.0 cannot be raised to a negative power");
  const double out = std::pow(*a.number(), *b.number());
  if (std::isnan(out) && !std::isnan(*a.number()) && !std::isnan(*b.number())) {
    fail_other("a power that is no real number");
  }
  if (std::isinf(out) && !std::isinf(*a.number()) && !std::isinf(*b.number()))
    fail_other("Numerical result out of range");
  return out;
}

Value negative(const Value& a) {
  if (a.integer()) return whole(-*a.integer());
  if (a.real() != nullptr) return -*a.real();
  fail_type(fmt::format("bad operand type for unary -: '{}'", type_name(a)), a);
}

Value positive(const Value& a) {
  if (a.integer()) return *a.integer();
  if (a.real() != nullptr) return a;
  fail_type(fmt::format("bad operand type for unary +: '{}'", type_name(a)), a);
}

}  // namespace switchyard::jinja

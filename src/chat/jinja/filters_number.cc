#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "chat/jinja/interpreter.h"
#include "chat/jinja/text_search.h"

namespace switchyard::jinja {

namespace {
namespace number_filters {

std::string trimmed(const Value& value) {
  std::string text = strip_text(str(value), Value(), Sides::both).bytes;
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool between = text[i] == '_' && i > 0 && i + 1 < text.size() && std::isdigit(text[i - 1]) &&
                         std::isdigit(text[i + 1]);
    if (!between) out += text[i];
  }
  return out;
}

std::optional<Integer> integer_of(std::string_view text, int base) {
  bool is_negative = false;
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) {
    is_negative = text[0] == '-';
    text.remove_prefix(1);
  }
  if (text.size() > 2 && text[0] == '0') {
    const char kind = static_cast<char>(text[1] | 32);
    if ((kind == 'x' && base == 16) || (kind == 'o' && base == 8) || (kind == 'b' && base == 2))
      text.remove_prefix(2);
  }
  std::uint64_t value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (text.empty() || result.ptr != text.data() + text.size() || result.ec == std::errc::invalid_argument)
    return std::nullopt;
  if (result.ec != std::errc()) fail_other("an integer has more than 64 bits");
  return whole(is_negative ? -static_cast<Integer>(value) : static_cast<Integer>(value));
}

std::optional<double> real_of(std::string_view text) {
  if (!text.empty() && text[0] == '+') text.remove_prefix(1);
  const std::string lowered = lower(text);
  if (lowered == "infinity") return HUGE_VAL;
  if (lowered == "-infinity") return -HUGE_VAL;
  double value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || result.ptr != text.data() + text.size() || text.find('(') != std::string_view::npos)
    return std::nullopt;
  if (result.ec == std::errc::result_out_of_range) return std::abs(value) < 1 ? 0.0 : HUGE_VAL;
  return result.ec == std::errc() ? std::optional(value) : std::nullopt;
}

std::optional<Integer> truncated(double value) {
  if (!std::isfinite(value)) return std::nullopt;
  if (std::abs(value) > 1e19) fail_other("an integer has more than 64 bits");
  return whole(static_cast<Integer>(value));
}

Value to_int(Interpreter&, const Value& value, const Arguments& arguments) {
  const Parameters parameters("int", arguments, {"default", "base"});
  const Value otherwise = parameters.has(0) ? parameters[0] : Value(0);
  refuse_undefined(value);
  if (const auto number = value.integer()) return *number;
  if (const double* real = value.real()) {
    const auto out = truncated(*real);
    return out ? Value(*out) : otherwise;
  }
  if (!value.is_text()) return otherwise;
  const std::string text = trimmed(value);
  if (const auto out =
          integer_of(text, static_cast<int>(std::clamp<Integer>(parameters.integer(1, 10), 2, 36))))
    return *out;
  const auto real = real_of(text);
  const auto out = real ? truncated(*real) : std::nullopt;
  return out ? Value(*out) : otherwise;
}

Value to_float(Interpreter&, const Value& value, const Arguments& arguments) {
  const Parameters parameters("float", arguments, {"default"});
  const Value otherwise = parameters.has(0) ? parameters[0] : Value(0.0);
  refuse_undefined(value);
  if (const auto number = value.number()) return *number;
  if (!value.is_text()) return otherwise;
  const auto out = real_of(trimmed(value));
  return out ? Value(*out) : otherwise;
}

Value absolute(Interpreter&, const Value& value, const Arguments&) {
  if (const auto number = value.integer()) return whole(*number < 0 ? -*number : *number);
  if (value.real() == nullptr) fail_other(fmt::format("bad operand type for abs(): '{}'", type_name(value)));
  return std::abs(*value.real());
}

// Python's round: half to even, of the decimal digits that the number really has.
Value rounded(const Value& value, Integer precision) {
  if (value.integer() && precision >= 0) return *value.integer();
  if (const auto number = value.integer()) {
    if (precision < -20) return 0;
    Integer unit = 1;
    for (Integer i = precision; i < 0; ++i) unit *= 10;
    Integer rest = *number % unit;
    if (rest < 0) rest += unit;
    const Integer low = *number - rest;
    const bool up = rest * 2 > unit || (rest * 2 == unit && (low / unit) % 2 != 0);
    return whole(up ? low + unit : low);
  }
  const double real = *value.real();
  if (!std::isfinite(real) || precision > 320) return real;
  if (precision < -308) return std::copysign(0.0, real);
  if (precision >= 0) return std::stod(fmt::format("{:.{}f}", real, static_cast<int>(precision)));
  const double unit = std::pow(10.0, static_cast<double>(-precision));
  return std::nearbyint(real / unit) * unit;
}

Value round(Interpreter&, const Value& value, const Arguments& arguments) {
  const Parameters parameters("round", arguments, {"precision", "method"});
  const std::string method = parameters.text(1, "common").bytes;
  if (method != "common" && method != "ceil" && method != "floor") {
    fail_other("method must be common, ceil or floor");
  }
  if (!value.number()) fail_other(fmt::format("type {} doesn't define __round__ method", type_name(value)));
  const Integer precision = parameters.integer(0, 0);
  if (method == "common") return rounded(value, precision);
  const double unit = std::pow(10.0, static_cast<double>(precision));
  const double scaled = *value.number() * unit;
  return (method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / unit;
}

constexpr FilterEntry kFilters[] = {{"int", to_int},
                                    {"float", to_float},
                                    {"abs", absolute},
                                    {"round", round}};

}  // namespace number_filters
}  // namespace

std::optional<Filter> find_number_filter(std::string_view name) {
  const FilterEntry* entry = find_entry(number_filters::kFilters, name);
  return entry == nullptr ? std::nullopt : std::optional(entry->filter);
}

}  // namespace switchyard::jinja

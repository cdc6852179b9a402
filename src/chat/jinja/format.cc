// str.format, format() and `%`.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "chat/jinja/interpreter.h"
#include "chat/jinja/markup.h"

namespace switchyard::jinja {

namespace {

struct Specification {
  std::string fill = " ";
  char align = '\0', sign = '-', kind = '\0', group = '\0';
  bool alternate = false, has_precision = false;
  std::size_t width = 0, precision = 6;
};

std::size_t read_number(std::string_view text, std::size_t& at) {
  std::size_t out = 0;
  while (at < text.size() && text[at] >= '0' && text[at] <= '9') {
    out = std::min<std::size_t>(out * 10 + static_cast<std::size_t>(text[at++] - '0'), std::size_t{1} << 40);
  }
  return out;
}

bool is_align(char c) {
  return c == '<' || c == '>' || c == '^' || c == '=';
}

Specification parse_specification(std::string_view text) {
  Specification out;
  std::size_t at = 0;
  if (!text.empty()) {
    const std::size_t next = code_point_at(text, 0).next;
    if (next < text.size() && is_align(text[next])) {
      out.fill = text.substr(0, next);
      out.align = text[next];
      at = next + 1;
    } else if (is_align(text[0])) {
      out.align = text[at++];
    }
  }
  const auto current = [&] { return at < text.size() ? text[at] : '\0'; };
  if (current() == '+' || current() == '-' || current() == ' ') out.sign = text[at++];
  if (current() == '#') out.alternate = ++at > 0;
  if (current() == '0') {
    if (out.align == '\0') {
      out.fill = "0";
      out.align = '=';
    }
    ++at;
  }
  out.width = read_number(text, at);
  if (current() == ',' || current() == '_') out.group = text[at++];
  if (current() == '.') {
    ++at;
    out.has_precision = true;
    out.precision = read_number(text, at);
  }
  if (at < text.size()) out.kind = text[at++];
  if (at != text.size()) fail_other("Invalid format specifier");
  Budget::check_bytes(out.width * out.fill.size());
  Budget::check_bytes(out.precision);
  return out;
}

std::string padded(std::string sign, std::string body, const Specification& spec, char otherwise) {
  const std::size_t size = count_code_points(body) + sign.size();
  const std::size_t room = spec.width > size ? spec.width - size : 0;
  const char align = spec.align == '\0' ? otherwise : spec.align;
  const auto fill = [&](std::size_t times) {
    std::string out;
    for (std::size_t i = 0; i < times; ++i) out += spec.fill;
    return out;
  };
  if (align == '<') return sign + body + fill(room);
  if (align == '^') return fill(room / 2) + sign + body + fill(room - room / 2);
  return align == '=' ? sign + fill(room) + body : fill(room) + sign + body;
}

std::string grouped(std::string digits, char group) {
  if (group == '\0') return digits;
  std::size_t end = 0;
  while (end < digits.size() && digits[end] >= '0' && digits[end] <= '9') ++end;
  for (std::size_t at = end; at > 3; at -= 3) digits.insert(at - 3, 1, group);
  return digits;
}

std::string sign_text(bool is_negative, char sign) {
  if (is_negative) return "-";
  return sign == '-' ? "" : std::string(1, sign);
}

std::string real_digits(double value, char kind, std::size_t precision, bool alternate) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return "inf";
  const int digits = static_cast<int>(std::min<std::size_t>(precision, 100'000));
  const char* const flag = alternate ? "#" : "";
  return fmt::format(fmt::runtime(fmt::format("{{:{}.{}{}}}", flag, digits, kind)), value);
}

std::string format_real(double value, const Specification& spec) {
  std::string body, kinds = "eEfFgG%n";
  const double size = std::abs(value);
  if (spec.kind == '\0') {
    body = spec.has_precision ? real_digits(size, 'g', std::max<std::size_t>(spec.precision, 1), false)
                              : float_repr(size);
    if (spec.has_precision && body.find_first_of(".en") == std::string::npos) body += ".0";
  } else if (kinds.find(spec.kind) == std::string::npos) {
    fail_other(fmt::format("Unknown format code '{}' for object of type 'float'", spec.kind));
  } else if (spec.kind == '%') {
    body = real_digits(size * 100, 'f', spec.precision, spec.alternate) + "%";
  } else {
    body = real_digits(size, spec.kind == 'n' ? 'g' : spec.kind, spec.precision, spec.alternate);
  }
  return padded(sign_text(std::signbit(value) && !std::isnan(value), spec.sign), grouped(body, spec.group),
                spec, '>');
}

std::string integer_digits(Integer value, char kind) {
  const unsigned base = kind == 'x' || kind == 'X' ? 16 : (kind == 'o' ? 8 : (kind == 'b' ? 2 : 10));
  std::string out;
  do {
    const auto digit = static_cast<std::size_t>(value % base);
    out += (kind == 'X' ? "0123456789ABCDEF" : "0123456789abcdef")[digit];
    value /= base;
  } while (value != 0);
  std::reverse(out.begin(), out.end());
  return out;
}

std::string character(Integer value) {
  if (value < 0 || value > 0x10FFFF || (value >= 0xD800 && value < 0xE000))
    fail_other("%c arg not in range(0x110000)");
  std::string out;
  append_code_point(out, static_cast<std::int32_t>(value));
  return out;
}

std::string format_integer(Integer value, const Specification& spec) {
  constexpr std::string_view kReal = "eEfFgG%", kInteger = "bdoxXn";
  if (spec.kind == 'c') return padded("", character(value), spec, '<');
  if (spec.kind != '\0' && kReal.find(spec.kind) != std::string_view::npos) {
    return format_real(static_cast<double>(value), spec);
  }
  if (spec.kind != '\0' && kInteger.find(spec.kind) == std::string_view::npos) {
    fail_other(fmt::format("Unknown format code '{}' for object of type 'int'", spec.kind));
  }
  if (spec.has_precision) fail_other("Precision not allowed in integer format specifier");
  std::string sign = sign_text(value < 0, spec.sign);
  if (spec.alternate && spec.kind != '\0' && spec.kind != 'd' && spec.kind != 'n') sign += {'0', spec.kind};
  return padded(sign, grouped(integer_digits(value < 0 ? -value : value, spec.kind), spec.group), spec, '>');
}

std::string format_text(const std::string& text, const Specification& spec) {
  if (spec.kind != '\0' && spec.kind != 's') {
    fail_other(fmt::format("Unknown format code '{}' for object of type 'str'", spec.kind));
  }
  if (spec.align == '=') fail_other("'=' alignment not allowed in string format specifier");
  std::string body = spec.has_precision ? text.substr(0, byte_of(text, spec.precision)) : text;
  return padded("", std::move(body), spec, '<');
}

// The fields of str.format: {name.attribute[index]!r:specification}.
class Formatter {
 public:
  Formatter(Interpreter& interpreter, const Arguments& arguments)
      : interpreter_(interpreter), arguments_(arguments) {}

  void format(const Text& pattern, std::string_view text, std::size_t offset, int depth) {
    if (depth > 2) fail_other("Max string recursion exceeded");
    for (std::size_t at = 0; at < text.size();) {
      const char c = text[at];
      if ((c == '{' || c == '}') && at + 1 < text.size() && text[at + 1] == c) {
        append(pattern, offset + at, offset + at + 1);
        at += 2;
      } else if (c == '}') {
        fail_other("Single '}' encountered in format string");
      } else if (c == '{') {
        const std::size_t end = field_end(text, at + 1);
        field(pattern, text.substr(at + 1, end - at - 1), offset + at + 1, depth);
        at = end + 1;
      } else {
        const std::size_t next = std::min(text.find_first_of("{}", at), text.size());
        append(pattern, offset + at, offset + next);
        at = next;
      }
    }
  }

  Text out;

 private:
  void append(const Text& pattern, std::size_t begin, std::size_t end) { out.append(pattern, begin, end); }

  static std::size_t field_end(std::string_view text, std::size_t at) {
    for (int open = 1; at < text.size(); ++at) {
      if (text[at] == '{') ++open;
      if (text[at] == '}' && --open == 0) return at;
    }
    fail_other("expected '}' before end of string");
  }

  Value base(std::string_view name) {
    std::size_t end = 0;
    const std::size_t number = read_number(name, end);
    if (name.empty() || end == name.size()) {
      const std::size_t at = name.empty() ? next_++ : number;
      if (at >= arguments_.positional.size()) {
        fail_other("Replacement index out of range for positional args tuple");
      }
      return arguments_.positional[at];
    }
    const Value* found = arguments_.find(name);
    if (found == nullptr) fail_other(fmt::format("KeyError: '{}'", name));
    return *found;
  }

  Value value_of(std::string_view path) {
    std::size_t at = std::min(path.find_first_of(".["), path.size());
    Value value = base(path.substr(0, at));
    while (at < path.size()) {
      const bool is_item = path[at] == '[';
      const std::size_t begin = at + 1;
      std::size_t end =
          is_item ? path.find(']', begin) : std::min(path.find_first_of(".[", begin), path.size());
      if (end == std::string_view::npos) fail_other("Missing ']' in format string");
      const std::string_view name = path.substr(begin, end - begin);
      if (name.empty()) fail_other("Empty attribute in format string");
      std::size_t digits = 0;
      const std::size_t number = read_number(name, digits);
      if (is_item) {
        value = interpreter_.item(value, digits == name.size() ? Value(number) : Value(name));
      } else {
        value = interpreter_.attribute(value, std::string(name));
      }
      at = is_item ? end + 1 : end;
    }
    return value;
  }

  void field(const Text& pattern, std::string_view text, std::size_t offset, int depth) {
    std::size_t end = 0;
    for (bool in_item = false; end < text.size() && (in_item || (text[end] != '!' && text[end] != ':'));
         ++end) {
      if (text[end] == '[') in_item = true;
      if (text[end] == ']') in_item = false;
    }
    Value value = value_of(text.substr(0, end));
    if (end < text.size() && text[end] == '!') {
      const char kind = end + 1 < text.size() ? text[end + 1] : '\0';
      Text converted;
      if (kind == 'r' || kind == 'a') {
        append_repr(converted, value);
      } else if (kind == 's') {
        converted = str(value);
      } else {
        fail_other("Unknown conversion specifier");
      }
      value = std::move(converted);
      end += 2;
    }
    std::string specification;
    if (end < text.size()) {
      if (text[end] != ':') fail_other("expected ':' after conversion specifier");
      Formatter inner(interpreter_, arguments_);
      inner.next_ = next_;
      inner.format(pattern, text.substr(end + 1), offset + end + 1, depth + 1);
      next_ = inner.next_;
      specification = inner.out.bytes;
    }
    const bool escapes = pattern.is_markup && depth == 0;
    if (specification.empty()) return escapes ? out.append(escaped(value)) : append_str(out, value);
    const Text made(format_value(value, specification), value.is_text() && value.text()->any_foreign());
    out.append(escapes ? escaped_text(made) : made);
  }

  Interpreter& interpreter_;
  const Arguments& arguments_;
  std::size_t next_ = 0;
};

}  // namespace

std::string format_value(const Value& value, std::string_view specification) {
  const Specification spec = parse_specification(specification);
  if (value.is_text()) return format_text(value.text()->bytes, spec);
  if (const bool* flag = value.boolean(); flag != nullptr && specification.empty())
    return *flag ? "True" : "False";
  if (const auto integer = value.integer()) return format_integer(*integer, spec);
  if (const double* real = value.real()) return format_real(*real, spec);
  if (!specification.empty()) {
    fail_other(fmt::format("unsupported format string passed to {}.__format__", type_name(value)));
  }
  return str(value).bytes;
}

Text formatted(Interpreter& interpreter, const Text& pattern, const Arguments& arguments) {
  Formatter formatter(interpreter, arguments);
  Budget::count_text(pattern.size());
  formatter.format(pattern, pattern.bytes, 0, 0);
  return std::move(formatter.out);
}

}  // namespace switchyard::jinja

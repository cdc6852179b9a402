// Python's str and repr.
#include <fmt/format.h>
#include <utf8proc.h>

#include <charconv>
#include <cmath>
#include <cstdlib>

#include "chat/jinja/value.h"

namespace switchyard::jinja {

namespace {

bool is_printable(std::int32_t point) {
  if (point < 127) return point >= 32;
  switch (utf8proc_category(point)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

std::string escape(std::int32_t point) {
  if (point == '\n') return "\\n";
  if (point == '\r') return "\\r";
  if (point == '\t') return "\\t";
  if (point < 0x100) return fmt::format("\\x{:02x}", point);
  if (point < 0x10000) return fmt::format("\\u{:04x}", point);
  return fmt::format("\\U{:08x}", point);
}

std::string text_repr(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char quote = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::string out(1, quote);
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    if (point.value == quote || point.value == '\\') {
      out += '\\';
      out += static_cast<char>(point.value);
    } else if (is_printable(point.value)) {
      out += text.substr(at, point.next - at);
    } else {
      out += escape(point.value);
    }
    at = point.next;
  }
  return out + quote;
}

void append_items(Text& out, const std::vector<Value>& items) {
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out.append(", ");
    append_repr(out, items[i]);
  }
}

void append_mapping(Text& out, const Mapping& mapping) {
  out.append("{");
  bool first = true;
  for (const auto& [key, value] : mapping.entries()) {
    if (!first) out.append(", ");
    first = false;
    append_repr(out, key);
    out.append(": ");
    append_repr(out, value);
  }
  out.append("}");
}

}  // namespace

std::string integer_text(Integer value) {
  if (value >= INT64_MIN && value <= INT64_MAX) return std::to_string(static_cast<std::int64_t>(value));
  return fmt::format("{}", value);
}

std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific).ptr;
  const std::string_view shortest(buffer, static_cast<std::size_t>(end - buffer));
  const std::size_t e = shortest.find('e');
  const int exponent = std::atoi(std::string(shortest.substr(e + 1)).c_str());
  if (exponent < -4 || exponent >= 16) {
    return fmt::format("{}e{}{:02}", shortest.substr(0, e), exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  const auto fixed_end = std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::fixed).ptr;
  std::string fixed(buffer, fixed_end);
  if (fixed.find('.') == std::string::npos) fixed += ".0";
  return fixed;
}

void append_repr(Text& out, const Value& value) {
  Budget::count_steps();
  Budget::check_stack();
  if (const Text* text = value.text()) {
    Budget::count_text(text->size());
    if (text->is_markup) out.append("Markup(");
    out.append(text_repr(text->bytes), text->any_foreign());
    if (text->is_markup) out.append(")");
  } else if (const List* list = value.list()) {
    out.append("[");
    append_items(out, list->items);
    out.append("]");
  } else if (const Tuple* tuple = value.tuple()) {
    out.append("(");
    append_items(out, tuple->items);
    out.append(tuple->items.size() == 1 ? ",)" : ")");
  } else if (const Mapping* mapping = value.mapping()) {
    append_mapping(out, *mapping);
  } else if (value.is_undefined()) {
    out.append("Undefined");
  } else {
    append_str(out, value);
  }
}

void append_str(Text& out, const Value& value) {
  if (const Text* text = value.text()) {
    Budget::count_text(text->size());
    out.append(*text);
  } else if (value.is_undefined()) {
    return;
  } else if (value.is_none()) {
    out.append("None");
  } else if (const bool* flag = value.boolean()) {
    out.append(*flag ? "True" : "False");
  } else if (const auto integer = value.integer()) {
    out.append(integer_text(*integer));
  } else if (const double* real = value.real()) {
    out.append(float_repr(*real));
  } else if (const Object* object = value.object()) {
    object->show(out);
  } else {
    append_repr(out, value);
  }
}

Text soft_str(const Value& value) {
  return value.is_text() ? *value.text() : str(value);
}

Text str(const Value& value) {
  if (const Text* text = value.text()) {
    Text plain = *text;
    plain.is_markup = false;
    return plain;
  }
  Text out;
  append_str(out, value);
  return out;
}

}  // namespace switchyard::jinja

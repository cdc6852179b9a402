// JSON as Python's json.dumps writes it, and values of JSON.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "chat/jinja/builtins.h"

namespace switchyard::jinja {

namespace {

void append_escaped(std::string& out, std::int32_t point) {
  if (point >= 0x10000) {
    const std::int32_t rest = point - 0x10000;
    out += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (rest >> 10), 0xDC00 + (rest & 0x3FF));
  } else {
    out += fmt::format("\\u{:04x}", point);
  }
}

std::string escaped(std::string_view text, bool ensure_ascii) {
  std::string out;
  out.reserve(text.size() + 2);
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    switch (point.value) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (point.value < 32 || (ensure_ascii && point.value > 126)) {
          if (point.value == 127) {
            out += '\x7f';
          } else {
            append_escaped(out, point.value);
          }
        } else {
          out += text.substr(at, point.next - at);
        }
    }
    at = point.next;
  }
  return out;
}

std::string real_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
  return float_repr(value);
}

class JsonWriter {
 public:
  JsonWriter(Text& out, const JsonStyle& style) : out_(out), style_(style) {}

  void write(const Value& value) {
    Budget::count_steps();
    Budget::check_stack();
    if (const Text* text = value.text()) return write_text(*text);
    if (value.is_none()) return out_.append("null");
    if (const bool* flag = value.boolean()) return out_.append(*flag ? "true" : "false");
    if (const auto integer = value.integer()) return out_.append(integer_text(*integer));
    if (const double* real = value.real()) return out_.append(real_text(*real));
    if (const auto* items = value.items()) return write_items(*items);
    if (const Mapping* mapping = value.mapping()) return write_mapping(*mapping);
    fail_other(fmt::format("Object of type {} is not JSON serializable", type_name(value)));
  }

 private:
  void write_text(const Text& text) {
    Budget::count_text(text.size());
    out_.append("\"");
    out_.append(escaped(text.bytes, style_.ensure_ascii), text.any_foreign());
    out_.append("\"");
  }

  void line_end() {
    if (!style_.indent) return;
    out_.append("\n");
    for (std::size_t i = 0; i < depth_; ++i) out_.append(*style_.indent);
  }

  template <typename Items, typename Write>
  void write_all(char open, char close, const Items& items, const Write& write_one) {
    out_.append(std::string_view(&open, 1));
    ++depth_;
    bool first = true;
    for (const auto& item : items) {
      if (!first) out_.append(style_.item_separator);
      first = false;
      line_end();
      write_one(item);
    }
    --depth_;
    if (!first) line_end();
    out_.append(std::string_view(&close, 1));
  }

  void write_items(const std::vector<Value>& items) {
    write_all('[', ']', items, [this](const Value& item) { write(item); });
  }

  void write_key(const Value& key) {
    if (key.is_text()) return write_text(*key.text());
    if (key.is_none() || key.number()) {
      out_.append("\"");
      write(key);
      return out_.append("\"");
    }
    fail_other(fmt::format("keys must be str, int, float, bool or None, not {}", type_name(key)));
  }

  void write_mapping(const Mapping& mapping) {
    auto entries = mapping.entries();
    if (style_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(),
                       [](const auto& a, const auto& b) { return compare(a.first, b.first) < 0; });
    }
    write_all('{', '}', entries, [this](const Mapping::Entry& entry) {
      write_key(entry.first);
      out_.append(style_.key_separator);
      write(entry.second);
    });
  }

  Text& out_;
  const JsonStyle& style_;
  std::size_t depth_ = 0;
};

Value text_value(const std::string& text, bool is_foreign) {
  if (!is_utf8(text)) fail_other("a text of the context is no UTF-8");
  return Text(text, is_foreign);
}

}  // namespace

Text json_text(const Value& value, const JsonStyle& style) {
  Text out;
  JsonWriter(out, style).write(value);
  return out;
}

Value value_of_json(const Json& json, bool is_foreign, const MemberChoices& choices) {
  Budget::count_steps();
  Budget::check_stack();
  switch (json.type()) {
    case Json::value_t::boolean:
      return json.get<bool>();
    case Json::value_t::number_integer:
      return static_cast<Integer>(json.get<std::int64_t>());
    case Json::value_t::number_unsigned:
      return static_cast<Integer>(json.get<std::uint64_t>());
    case Json::value_t::number_float:
      return json.get<double>();
    case Json::value_t::string:
      return text_value(json.get_ref<const std::string&>(), is_foreign);
    case Json::value_t::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const Json& item : json) items.push_back(value_of_json(item, is_foreign, choices));
      return make_list(std::move(items));
    }
    case Json::value_t::object: {
      auto mapping = make_mapping();
      for (const auto& [key, value] : json.items()) {
        const auto known = is_foreign && value.is_string() ? choices.find(key) : choices.end();
        const bool chosen = known != choices.end() && known->second.contains(value.get<std::string>());
        mapping->set(text_value(key, is_foreign), value_of_json(value, is_foreign && !chosen, choices));
      }
      return mapping;
    }
    default:
      return Value();
  }
}

}  // namespace switchyard::jinja

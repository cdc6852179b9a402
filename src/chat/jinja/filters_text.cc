// Filters that give texts.
#include <fmt/format.h>

#include <algorithm>

#include "chat/jinja/interpreter.h"
#include "chat/jinja/markup.h"
#include "chat/jinja/text_search.h"

namespace switchyard::jinja {

namespace {
namespace text_filters {

Value changed(const Value& value, std::string (*change)(std::string_view)) {
  const Text text = str(value);
  Budget::count_text(text.size());
  return Text(change(text.bytes), text.any_foreign());
}

Value to_upper(Interpreter&, const Value& value, const Arguments&) {
  return like(value, *changed(value, upper).text());
}
Value to_lower(Interpreter&, const Value& value, const Arguments&) {
  return like(value, *changed(value, lower).text());
}
Value capitalize(Interpreter&, const Value& value, const Arguments&) {
  return like(value, *changed(value, capitalized).text());
}

// Words begin after white space, a hyphen or an opening bracket, unlike those of str.title.
Value to_title(Interpreter&, const Value& value, const Arguments&) {
  const Text text = str(value);
  std::string out, word;
  const auto flush = [&] {
    const std::size_t first = word.empty() ? 0 : code_point_at(word, 0).next;
    out += upper(std::string_view(word).substr(0, first));
    out += lower(std::string_view(word).substr(first));
    word.clear();
  };
  for (const std::int32_t point : code_points(text.bytes)) {
    if (is_space(point) ||
        (point < 128 && std::string_view("-({[<").find(static_cast<char>(point)) != std::string_view::npos)) {
      flush();
      append_code_point(out, point);
    } else {
      append_code_point(word, point);
    }
  }
  flush();
  return Text(std::move(out), text.any_foreign());
}

Value trim(Interpreter&, const Value& value, const Arguments& arguments) {
  const Parameters parameters("trim", arguments, {"chars"});
  return like(value, strip_text(str(value), parameters[0], Sides::both));
}

Value string(Interpreter&, const Value& value, const Arguments&) {
  return value.is_text() ? value : Value(str(value));
}

Value replace(Interpreter&, const Value& value, const Arguments& arguments) {
  const Parameters parameters("replace", arguments, {"old", "new", "count"}, 2);
  return replaced(str(value), str(parameters[0]), str(parameters[1]),
                  parameters.has_value(2) ? parameters.integer(2, -1) : -1);
}

Value escape(Interpreter&, const Value& value, const Arguments&) {
  Budget::count_text(value.is_text() ? value.text()->size() : 0);
  return escaped(value);
}
Value forceescape(Interpreter&, const Value& value, const Arguments&) {
  return escaped_text(str(value));
}
Value safe(Interpreter&, const Value& value, const Arguments&) {
  return as_markup(str(value));
}

Value format(Interpreter&, const Value& value, const Arguments& arguments) {
  if (!arguments.positional.empty() && !arguments.named.empty()) {
    fail_other("can't handle positional and keyword arguments at the same time");
  }
  if (arguments.named.empty()) return percent_formatted(soft_str(value), make_tuple(arguments.positional));
  auto named = make_mapping();
  for (const auto& [key, each] : arguments.named) named->set(Value(std::string_view(key)), each);
  return percent_formatted(soft_str(value), named);
}

Value striptags(Interpreter&, const Value& value, const Arguments&) {
  return changed(value, without_tags);
}

std::string quoted(std::string_view text, bool keeps_slash) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') || c == '_' ||
                       c == '.' || c == '-' || c == '~' || (c == '/' && keeps_slash);
    if (plain) {
      out += c;
    } else {
      out += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return out;
}

Value urlencode(Interpreter&, const Value& value, const Arguments&) {
  if (value.is_text() || try_iterate(value) == nullptr) {
    const Text text = str(value);
    return Text(quoted(text.bytes, true), text.any_foreign());
  }
  Text out;
  const auto part = [&](const Value& each) {
    const Text text = str(each);
    std::string bytes = quoted(text.bytes, false);
    for (std::size_t at = bytes.find("%20"); at != std::string::npos; at = bytes.find("%20", at))
      bytes.replace(at, 3, "+");
    out.append(bytes, text.any_foreign());
  };
  const auto pair = [&](const Value& key, const Value& each) {
    if (out.size() > 0) out.append("&");
    part(key);
    out.append("=");
    part(each);
  };
  if (const Mapping* mapping = value.mapping()) {
    for (const auto& [key, each] : mapping->entries()) pair(key, each);
  } else {
    for (const Value& each : items_of(value)) {
      const auto items = items_of(each);
      if (items.size() != 2) fail_other("urlencode takes pairs");
      pair(items[0], items[1]);
    }
  }
  return out;
}

Value xmlattr(Interpreter&, const Value& value, const Arguments& arguments) {
  const Parameters parameters("xmlattr", arguments, {"autospace"});
  if (value.mapping() == nullptr) fail_type("xmlattr takes a mapping", value);
  Text out;
  for (const auto& [key, each] : value.mapping()->entries()) {
    if (each.is_none() || each.is_undefined()) continue;
    const Text name = str(key);
    if (name.bytes.find_first_of(" \t\n\r\f\v/>=") != std::string::npos) {
      fail_other(fmt::format("Invalid character in attribute name: '{}'", name.bytes));
    }
    if (out.size() > 0 || parameters.flag(0, true)) out.append(" ");
    out.append(escaped(key));
    out.append("=\"");
    out.append(escaped(each));
    out.append("\"");
  }
  return out;
}

std::optional<std::string> indent_of(const Value& value) {
  if (value.is_none()) return std::nullopt;
  if (value.is_text()) return value.text()->bytes;
  if (!value.integer()) fail_type("indent must be an integer or a text", value);
  const std::size_t spaces = to_size(*value.integer());
  Budget::check_bytes(spaces);
  return std::string(spaces, ' ');
}

Value tojson(Interpreter&, const Value& value, const Arguments& arguments) {
  const Parameters parameters("tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = parameters.flag(0, false);
  style.indent = indent_of(parameters[1]);
  style.sort_keys = parameters.flag(3, false);
  if (style.indent) style.item_separator = ",";
  if (parameters.has_value(2)) {
    const auto separators = items_of(parameters[2]);
    if (separators.size() != 2 || !separators[0].is_text() || !separators[1].is_text()) {
      fail_other("separators must be two texts");
    }
    style.item_separator = separators[0].text()->bytes;
    style.key_separator = separators[1].text()->bytes;
  }
  return json_text(value, style);
}

Value from_json(Interpreter&, const Value& value, const Arguments&) {
  if (!value.is_text()) fail_type("from_json takes a text", value);
  const Text& text = *value.text();
  Budget::count_text(text.size());
  const Json json = Json::parse(text.bytes, nullptr, false);
  if (json.is_discarded()) fail_other("from_json: the text is no JSON");
  return value_of_json(json, text.any_foreign());
}

constexpr FilterEntry kFilters[] = {
    {"upper", to_upper},          {"lower", to_lower},      {"capitalize", capitalize},
    {"title", to_title},          {"trim", trim},           {"string", string},
    {"replace", replace},         {"escape", escape},       {"e", escape},
    {"forceescape", forceescape}, {"safe", safe},           {"format", format},
    {"striptags", striptags},     {"urlencode", urlencode}, {"xmlattr", xmlattr},
    {"tojson", tojson},           {"from_json", from_json},
};

}  // namespace text_filters
}  // namespace

std::optional<Filter> find_text_filter(std::string_view name) {
  const FilterEntry* entry = find_entry(text_filters::kFilters, name);
  return entry == nullptr ? std::nullopt : std::optional(entry->filter);
}

}  // namespace switchyard::jinja

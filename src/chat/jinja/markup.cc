#include "chat/jinja/markup.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

namespace switchyard::jinja {

namespace {

std::string_view escape_of(char c) {
  switch (c) {
    case '&':
      return "&amp;";
    case '<':
      return "&lt;";
    case '>':
      return "&gt;";
    case '"':
      return "&#34;";
    case '\'':
      return "&#39;";
    default:
      return {};
  }
}

// Cuts out what stands from `begin` to the next `end`.
std::string without_parts(std::string_view text, std::string_view begin, std::string_view end) {
  std::string out;
  while (true) {
    const std::size_t at = text.find(begin), to = at == text.npos ? text.npos : text.find(end, at);
    if (to == text.npos) return out + std::string(text);
    out += text.substr(0, at);
    text.remove_prefix(to + end.size());
  }
}

// Returns the code point of an HTML entity by its name (`#65`, `lt`); -1 for an unknown name.
std::int32_t code_point_of_entity(std::string_view name) {
  static constexpr std::array<std::pair<std::string_view, std::int32_t>, 16> kNames{{{"lt", '<'},
                                                                                     {"gt", '>'},
                                                                                     {"amp", '&'},
                                                                                     {"quot", '"'},
                                                                                     {"apos", '\''},
                                                                                     {"nbsp", 0xA0},
                                                                                     {"copy", 0xA9},
                                                                                     {"reg", 0xAE},
                                                                                     {"hellip", 0x2026},
                                                                                     {"mdash", 0x2014},
                                                                                     {"ndash", 0x2013},
                                                                                     {"lsquo", 0x2018},
                                                                                     {"rsquo", 0x2019},
                                                                                     {"ldquo", 0x201C},
                                                                                     {"rdquo", 0x201D},
                                                                                     {"euro", 0x20AC}}};
  for (const auto& [known, point] : kNames)
    if (known == name) return point;
  if (!name.starts_with('#')) return -1;
  name.remove_prefix(1);
  const bool is_hex = name.starts_with('x') || name.starts_with('X');
  if (is_hex) name.remove_prefix(1);
  std::int32_t point = 0;
  const auto [end, status] = std::from_chars(name.data(), name.data() + name.size(), point, is_hex ? 16 : 10);
  const bool is_whole = status == std::errc() && end == name.data() + name.size() && !name.empty();
  const bool is_surrogate = point >= 0xD800 && point <= 0xDFFF;
  return is_whole && point > 0 && point <= 0x10FFFF && !is_surrogate ? point : -1;
}

}  // namespace

bool is_markup(const Value& value) {
  return value.is_text() && value.text()->is_markup;
}

Text as_markup(Text text, bool is) {
  text.is_markup = is;
  return text;
}

Value like(const Value& value, Text text) {
  return as_markup(std::move(text), is_markup(value));
}

Text escaped_text(const Text& text) {
  Text out;
  std::size_t from = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const std::string_view escape = escape_of(text.bytes[at]);
    if (escape.empty()) continue;
    out.append(text, from, at);
    const bool foreign = std::ranges::any_of(
        text.foreign, [&](const TextRange& range) { return range.begin <= at && at < range.end; });
    out.append(escape, foreign);
    from = at + 1;
  }
  out.append(text, from, text.size());
  return as_markup(std::move(out));
}

Text escaped(const Value& value) {
  return is_markup(value) ? *value.text() : escaped_text(str(value));
}

std::string without_tags(std::string_view text) {
  const std::string bare = without_parts(without_parts(text, "<!--", "-->"), "<", ">");
  std::string words;
  bool in_word = false;
  for (std::size_t at = 0; at < bare.size();) {
    const CodePoint point = code_point_at(bare, at);
    const bool space = is_space(point.value);
    if (!space && !in_word && !words.empty()) words += ' ';
    if (!space) words.append(bare, at, point.next - at);
    in_word = !space;
    at = point.next;
  }
  return unescaped_html(words);
}

std::string unescaped_html(std::string_view text) {
  constexpr std::size_t kLongest = 16;
  std::string out;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const std::size_t end = text[at] == '&' ? text.substr(at, kLongest).find(';') : text.npos;
    const std::int32_t point = end == text.npos ? -1 : code_point_of_entity(text.substr(at + 1, end - 1));
    if (point < 0) {
      out += text[at];
    } else {
      append_code_point(out, point);
      at += end;
    }
  }
  return out;
}

Value markup_result(std::string_view method, Value result) {
  static constexpr std::array<std::string_view, 21> kMethods{
      "strip",        "lstrip",       "rstrip",     "upper",  "lower",  "title", "capitalize",
      "removeprefix", "removesuffix", "replace",    "join",   "format", "split", "rsplit",
      "splitlines",   "partition",    "rpartition", "center", "ljust",  "rjust", "zfill"};
  if (std::ranges::find(kMethods, method) == kMethods.end()) return result;
  if (result.is_text()) return as_markup(*result.text());
  const std::vector<Value>* const items = result.items();
  if (items == nullptr) return result;
  std::vector<Value> marked;
  for (const Value& item : *items) marked.push_back(item.is_text() ? Value(as_markup(*item.text())) : item);
  if (result.list() != nullptr) return make_list(std::move(marked));
  return make_tuple(std::move(marked));
}

Arguments markup_arguments(std::string_view method, const Arguments& arguments) {
  Arguments changed = arguments;
  if (method == "join" && !changed.positional.empty()) {
    std::vector<Value> items;
    for (const Value& item : items_of(changed.positional[0])) items.emplace_back(escaped(item));
    changed.positional[0] = make_list(std::move(items));
  }
  const bool fills = method == "replace" || method == "center" || method == "ljust" || method == "rjust";
  if (fills && changed.positional.size() > 1) changed.positional[1] = escaped(changed.positional[1]);
  for (auto& [name, value] : changed.named)
    if (fills && (name == "new" || name == "fillchar")) value = escaped(value);
  return changed;
}

}  // namespace switchyard::jinja

#include "chat/jinja/text_search.h"

#include <fmt/format.h>

#include <algorithm>

namespace switchyard::jinja {

Text strip_text(const Text& text, const Value& characters, Sides sides) {
  Budget::count_text(text.size());
  TextRange range;
  if (characters.is_none()) {
    range = stripped(text.bytes, sides);
  } else {
    if (!characters.is_text()) fail_type("strip arg must be None or str", characters);
    const std::string_view set = characters.text()->bytes;
    range = stripped(text.bytes, sides, &set);
  }
  return text.part(range.begin, range.end);
}

TextRange index_range(const Text& text, const Value& start, const Value& end) {
  if (start.is_none() && end.is_none()) return {0, text.size()};
  const auto size = static_cast<Integer>(count_code_points(text.bytes));
  const auto index = [&](const Value& value, Integer otherwise) {
    if (value.is_none()) return otherwise;
    if (!value.integer()) fail_type("slice indices must be integers or None", value);
    Integer at = *value.integer();
    if (at < 0) at += size;
    return std::max<Integer>(at, 0);
  };
  const Integer first = index(start, 0), last = std::min(index(end, size), size);
  if (first > size) return {1, 0};
  return {byte_of(text.bytes, to_size(first)), byte_of(text.bytes, to_size(last))};
}

Text replaced(const Text& text, const Text& old, const Text& by, Integer count) {
  Budget::count_text(text.size());
  Text out;
  std::size_t at = 0;
  if (old.bytes.empty()) {  // between all code points, and at both ends
    while (count != 0) {
      out.append(by);
      if (count > 0) --count;
      if (at >= text.size()) return out;
      const std::size_t next = code_point_at(text.bytes, at).next;
      out.append(text, at, next);
      at = next;
    }
    out.append(text, at, text.size());
    return out;
  }
  while (count != 0) {
    const std::size_t found = text.bytes.find(old.bytes, at);
    if (found == std::string::npos) break;
    out.append(text, at, found);
    out.append(by);
    at = found + old.size();
    if (count > 0) --count;
  }
  out.append(text, at, text.size());
  Budget::count_text(out.size());
  return out;
}

std::size_t count_of(std::string_view text, std::string_view part) {
  Budget::count_text(text.size());
  if (part.empty()) return count_code_points(text) + 1;
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + part.size()))
    ++count;
  return count;
}

std::vector<Value> lines_of(const Text& text, bool keep_ends) {
  Budget::count_text(text.size());
  std::vector<Value> out;
  for (std::size_t begin = 0, at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text.bytes, at);
    std::size_t next = point.next;
    if (is_line_end(point.value)) {
      if (point.value == '\r' && next < text.size() && text.bytes[next] == '\n') ++next;
      out.emplace_back(text.part(begin, keep_ends ? next : at));
      begin = next;
    } else if (next == text.size()) {
      out.emplace_back(text.part(begin, next));
    }
    at = next;
  }
  return out;
}

std::vector<Value> words_of(const Text& text) {
  Budget::count_text(text.size());
  std::vector<Value> out;
  std::size_t begin = 0, at = 0;
  while (at < text.size()) {
    const CodePoint point = code_point_at(text.bytes, at);
    if (is_space(point.value)) {
      if (begin < at) out.emplace_back(text.part(begin, at));
      begin = point.next;
    }
    at = point.next;
  }
  if (begin < at) out.emplace_back(text.part(begin, at));
  return out;
}

}  // namespace switchyard::jinja

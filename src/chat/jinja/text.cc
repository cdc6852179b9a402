#include "chat/jinja/text.h"

#include <utf8proc.h>

#include <algorithm>

#include "chat/jinja/budget.h"

namespace switchyard::jinja {

void Text::mark(std::size_t begin, std::size_t end) {
  if (begin == end) return;
  if (!foreign.empty() && foreign.back().end == begin) {
    foreign.back().end = end;
  } else {
    foreign.push_back({begin, end});
  }
}

void Text::append(std::string_view more, bool is_foreign) {
  Budget::check_bytes(bytes.size() + more.size());
  const std::size_t begin = bytes.size();
  bytes += more;
  if (is_foreign) mark(begin, bytes.size());
}

void Text::append(const Text& other, std::size_t begin, std::size_t end) {
  const std::size_t at = bytes.size();
  append(std::string_view(other.bytes).substr(begin, end - begin));
  if (other.foreign.empty()) return;
  // A text has few ranges, but one that is cut into many parts may have many: the first is found by halving.
  auto range = std::lower_bound(other.foreign.begin(), other.foreign.end(), begin,
                                [](const TextRange& each, std::size_t value) { return each.end <= value; });
  for (; range != other.foreign.end() && range->begin < end; ++range) {
    mark(at + std::max(range->begin, begin) - begin, at + std::min(range->end, end) - begin);
  }
}

Text Text::part(std::size_t begin, std::size_t end) const {
  Text out;
  out.append(*this, begin, end);
  return out;
}

CodePoint code_point_at(std::string_view text, std::size_t at) {
  const auto byte = static_cast<unsigned char>(text[at]);
  if (byte < 0x80) return {byte, at + 1};
  utf8proc_int32_t value = 0;
  const auto size = utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + at,
                                     static_cast<utf8proc_ssize_t>(text.size() - at), &value);
  if (size <= 0) return {byte, at + 1};
  return {value, at + static_cast<std::size_t>(size)};
}

void append_code_point(std::string& out, std::int32_t value) {
  utf8proc_uint8_t bytes[4];
  const auto size = utf8proc_encode_char(value, bytes);
  out.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(size));
}

std::vector<std::int32_t> code_points(std::string_view text) {
  std::vector<std::int32_t> out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    out.push_back(point.value);
    at = point.next;
  }
  return out;
}

std::size_t count_code_points(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::vector<std::size_t> code_point_starts(std::string_view text) {
  std::vector<std::size_t> out;
  out.reserve(text.size() + 1);
  for (std::size_t at = 0; at < text.size(); at = code_point_at(text, at).next) out.push_back(at);
  out.push_back(text.size());
  return out;
}

std::size_t byte_of(std::string_view text, std::size_t index) {
  std::size_t at = 0;
  for (; index > 0 && at < text.size(); --index) at = code_point_at(text, at).next;
  return at;
}

bool is_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    if (point.next == at + 1 && static_cast<unsigned char>(text[at]) >= 0x80) return false;
    at = point.next;
  }
  return true;
}

bool is_space(std::int32_t c) {
  if (c < 128) return (c >= 9 && c <= 13) || (c >= 28 && c <= 32);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_line_end(std::int32_t c) {
  return (c >= 10 && c <= 13) || (c >= 28 && c <= 30) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

namespace {

bool is_taken(std::string_view code_point, std::int32_t value, const std::string_view* characters) {
  if (characters == nullptr) return is_space(value);
  return characters->find(code_point) != std::string_view::npos;
}

std::size_t start_of_last(std::string_view text, std::size_t end) {
  std::size_t at = end - 1;
  while (at > 0 && end - at < 4 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

}  // namespace

TextRange stripped(std::string_view text, Sides sides, const std::string_view* characters) {
  TextRange range{0, text.size()};
  while (sides != Sides::right && range.begin < range.end) {
    const CodePoint point = code_point_at(text, range.begin);
    if (!is_taken(text.substr(range.begin, point.next - range.begin), point.value, characters)) break;
    range.begin = point.next;
  }
  while (sides != Sides::left && range.begin < range.end) {
    const std::size_t at = start_of_last(text, range.end);
    if (!is_taken(text.substr(at, range.end - at), code_point_at(text, at).value, characters)) break;
    range.end = at;
  }
  return range;
}

}  // namespace switchyard::jinja

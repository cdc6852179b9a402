#include <algorithm>

#include "grammar/grammar.h"
#include "grammar/rules.h"

namespace switchyard::grammar {

namespace {
constexpr std::uint32_t first_surrogate = 0xD800, last_surrogate = 0xDFFF, last_code_point = 0x10FFFF;
}  // namespace

CodePoints CodePoints::all() {
  CodePoints set;
  set.ranges_ = {{0, first_surrogate - 1}, {last_surrogate + 1, last_code_point}};
  return set;
}

void CodePoints::add(std::uint32_t first, std::uint32_t last) {
  last = std::min(last, last_code_point);
  if (first <= last_surrogate && last >= first_surrogate) {
    if (first < first_surrogate) add(first, first_surrogate - 1);
    if (last > last_surrogate) add(last_surrogate + 1, last);
    return;
  }
  if (first > last) return;
  std::vector<Range> merged;
  for (const Range& range : ranges_) {
    if (range.second + 1 < first || last + 1 < range.first) {
      merged.push_back(range);
    } else {
      first = std::min(first, range.first);
      last = std::max(last, range.second);
    }
  }
  merged.emplace_back(first, last);
  std::sort(merged.begin(), merged.end());
  ranges_ = std::move(merged);
}

void CodePoints::add(const CodePoints& other) {
  for (const Range& range : other.ranges_) add(range.first, range.second);
}

CodePoints CodePoints::without(const CodePoints& other) const {
  CodePoints left;
  for (const Range& range : ranges_) {
    std::uint32_t first = range.first;
    bool done = false;
    for (const Range& cut : other.ranges_) {
      if (cut.second < first) continue;
      if (cut.first > range.second) break;
      if (cut.first > first) left.ranges_.emplace_back(first, cut.first - 1);
      if (cut.second >= range.second) {
        done = true;
        break;
      }
      first = cut.second + 1;
    }
    if (!done) left.ranges_.emplace_back(first, range.second);
  }
  return left;
}

bool CodePoints::has(std::uint32_t code_point) const {
  return has_all(code_point, code_point);
}

bool CodePoints::has_all(std::uint32_t first, std::uint32_t last) const {
  return std::any_of(ranges_.begin(), ranges_.end(),
                     [&](const Range& range) { return range.first <= first && last <= range.second; });
}

std::vector<std::uint32_t> code_points_of(std::string_view text) {
  std::vector<std::uint32_t> points;
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const std::size_t length = lead < 0x80       ? 1
                               : lead >> 5 == 6  ? 2
                               : lead >> 4 == 14 ? 3
                               : lead >> 3 == 30 ? 4
                                                 : 0;
    if (length == 0 || i + length > text.size()) throw GrammarError("a text is not UTF-8");
    std::uint32_t point = length == 1 ? lead : lead & (0x7Fu >> length);
    for (std::size_t j = 1; j < length; ++j) {
      const auto next = static_cast<unsigned char>(text[i + j]);
      if (next >> 6 != 2) throw GrammarError("a text is not UTF-8");
      point = point << 6 | (next & 0x3Fu);
    }
    constexpr std::uint32_t shortest[] = {0, 0, 0x80, 0x800, 0x10000};
    if (point < shortest[length] || !CodePoints::all().has(point)) throw GrammarError("a text is not UTF-8");
    points.push_back(point);
    i += length;
  }
  return points;
}

CodePoints set_of(std::string_view characters) {
  CodePoints set;
  for (char c : characters) set.add(static_cast<std::uint32_t>(c), static_cast<std::uint32_t>(c));
  return set;
}

std::string utf8_of(std::uint32_t code_point) {
  const auto byte = [](std::uint32_t value) { return static_cast<char>(value); };
  const auto next = [&](int shift) { return byte(0x80 | (code_point >> shift & 0x3F)); };
  if (code_point < 0x80) return {byte(code_point)};
  if (code_point < 0x800) return {byte(0xC0 | code_point >> 6), next(0)};
  if (code_point < 0x10000) return {byte(0xE0 | code_point >> 12), next(6), next(0)};
  return {byte(0xF0 | code_point >> 18), next(12), next(6), next(0)};
}

}  // namespace switchyard::grammar

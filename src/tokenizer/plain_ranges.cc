#include "tokenizer/plain_ranges.h"

#include <algorithm>

#include "tokenizer/unicode.h"

namespace switchyard {
namespace {

// A character for private use that the text lacks; "" if it has them all.
std::string absent_mark(const std::string& text) {
  for (std::uint32_t c = 0x10fff0; c <= 0x10fffd; ++c) {
    if (text.find(utf8_of(c)) == std::string::npos) return utf8_of(c);
  }
  return "";
}

std::string with_marks(const std::string& text, std::span<const TextRange> ranges, const std::string& mark) {
  std::string marked;
  std::size_t done = 0;
  for (const TextRange& range : ranges) {
    marked.append(text, done, range.begin - done).append(mark);
    marked.append(text, range.begin, range.end - range.begin).append(mark);
    done = range.end;
  }
  return marked.append(text, done);
}

}  // namespace

bool touches(std::span<const TextRange> ranges, std::size_t begin, std::size_t end) {
  const auto first = std::ranges::upper_bound(ranges, begin, {}, &TextRange::end);
  return first != ranges.end() && first->begin < end && first->begin < first->end;
}

std::vector<TextRange> ranges_within(std::span<const TextRange> ranges, std::size_t begin, std::size_t end) {
  std::vector<TextRange> within;
  for (auto range = std::ranges::upper_bound(ranges, begin, {}, &TextRange::end);
       range != ranges.end() && range->begin < end; ++range) {
    within.push_back({std::max(range->begin, begin) - begin, std::min(range->end, end) - begin});
  }
  return within;
}

std::vector<TextRange> ranges_in_valid(std::string_view text, std::span<const TextRange> ranges) {
  std::vector<TextRange> moved(ranges.begin(), ranges.end());
  std::size_t begins = 0, ends = 0, at = 0, place = 0;
  while (at < text.size()) {
    const std::size_t length = utf8_length(text, at);
    const std::size_t next = at + std::max<std::size_t>(length, 1),
                      next_place = place + (length > 0 ? length : 3);
    for (; begins < ranges.size() && ranges[begins].begin < next; ++begins) moved[begins].begin = place;
    for (; ends < ranges.size() && ranges[ends].end <= next; ++ends) moved[ends].end = next_place;
    at = next;
    place = next_place;
  }
  for (; begins < ranges.size(); ++begins) moved[begins].begin = place;
  for (; ends < ranges.size(); ++ends) moved[ends].end = place;
  return moved;
}

std::optional<std::vector<TextRange>> ranges_in_normal(
    const std::string& text, std::span<const TextRange> ranges, const std::string& normal,
    const std::function<std::string(std::string)>& normalize) {
  if (normal == text || ranges.empty()) return std::vector<TextRange>(ranges.begin(), ranges.end());
  const std::string mark = absent_mark(text + normal);
  if (mark.empty()) return {};
  const std::string marked = normalize(with_marks(text, ranges, mark));
  std::vector<std::size_t> places;
  std::string unmarked;
  std::size_t done = 0;
  for (std::size_t at; (at = marked.find(mark, done)) != std::string::npos; done = at + mark.size()) {
    unmarked.append(marked, done, at - done);
    places.push_back(unmarked.size());
  }
  unmarked.append(marked, done);
  if (unmarked != normal || places.size() != 2 * ranges.size()) return {};
  std::vector<TextRange> moved;
  for (std::size_t i = 0; i < places.size(); i += 2) moved.push_back({places[i], places[i + 1]});
  return moved;
}

}  // namespace switchyard

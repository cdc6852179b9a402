#include "tokenizer/engine_classes.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <cctype>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "tokenizer/unicode.h"

namespace switchyard {
namespace {

constexpr std::size_t kCategoryCount = kCategoryNames.size();

// The general categories of the installed PCRE2. A pattern marks the category of each run of a text of all characters.
std::array<CodeSet, kCategoryCount> read_categories() {
  std::string pattern;
  for (std::size_t i = 0; i < kCategoryCount; ++i)
    pattern += fmt::format("{}\\p{{{}}}++(*MARK:{})", i > 0 ? "|" : "", kCategoryNames[i], i);
  std::string text;
  std::vector<std::pair<std::size_t, std::uint32_t>> places;  // where planes begin: byte, character
  // The planes between have no characters, and those behind are for private use.
  for (const CodeRange& range : {CodeRange{0, 0xd7ff}, CodeRange{0xe000, 0x3ffff}, CodeRange{0xe0000, 0xe0fff}}) {
    for (std::uint32_t c = range.first; c <= range.last; ++c) {
      if (c % 0x100 == 0) places.emplace_back(text.size(), c);
      text += utf8_of(c);
    }
  }
  places.emplace_back(text.size(), 0x110000);
  int error = 0;
  PCRE2_SIZE offset = 0;
  const std::unique_ptr<pcre2_code, void (*)(pcre2_code*)> code(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &error, &offset, nullptr),
      pcre2_code_free);
  CHECK(code != nullptr, "PCRE2 knows no general categories");
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> data(pcre2_match_data_create(1, nullptr),
                                                                            pcre2_match_data_free);
  CHECK(data != nullptr, "out of memory");
  std::array<std::vector<CodeRange>, kCategoryCount> ranges;
  // Page by page: a text of all characters needs no long match.
  for (std::size_t page = 0; page + 1 < places.size(); ++page) {
    const auto [begin, first] = places[page];
    std::uint32_t c = first;
    for (std::size_t at = begin; at < places[page + 1].first;) {
      const int status = pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), places[page + 1].first, at,
                                     PCRE2_NO_UTF_CHECK, data.get(), nullptr);
      CHECK(status >= 0 && pcre2_get_mark(data.get()) != nullptr, "PCRE2 knows no category of a character", c);
      const std::size_t end = pcre2_get_ovector_pointer(data.get())[1];
      std::uint32_t count = 0;
      for (std::size_t i = at; i < end; ++i) count += (static_cast<unsigned char>(text[i]) & 0xc0u) != 0x80u;
      const auto category = static_cast<std::size_t>(std::atoi(reinterpret_cast<const char*>(pcre2_get_mark(data.get()))));
      ranges[category].push_back({c, c + count - 1});
      c += count;
      at = end;
    }
  }
  ranges[27].insert(ranges[27].end(), {{0x40000, 0xdffff}, {0xe1000, 0xeffff}, {0xffffe, 0xfffff}, {0x10fffe, 0x10ffff}});
  ranges[28].insert(ranges[28].end(), {{0xf0000, 0xffffd}, {0x100000, 0x10fffd}});
  std::array<CodeSet, kCategoryCount> sets;
  for (std::size_t i = 0; i < kCategoryCount; ++i) sets[i] = CodeSet(std::move(ranges[i]));
  return sets;
}

const std::array<CodeSet, kCategoryCount>& engine_categories() {
  static const std::array<CodeSet, kCategoryCount> sets = read_categories();
  return sets;
}

std::string character(std::uint32_t c) {
  const bool plain = c < 0x80 && (std::isalnum(static_cast<int>(c)) != 0);
  return plain ? std::string(1, static_cast<char>(c)) : fmt::format("\\x{{{:x}}}", c);
}

std::string ranges_text(const CodeSet& set) {
  std::string text;
  for (const CodeRange& range : set.ranges()) {
    text += character(range.first);
    if (range.last > range.first + 1) text += '-';
    if (range.last > range.first) text += character(range.last);
  }
  return text;
}

// Categories that a set has for the most part, what it has beside them, and what it lacks of them.
struct ClassParts {
  std::string categories;
  CodeSet beside, lacking;
  std::size_t cost = 0;
};

ClassParts parts_of(const CodeSet& set) {
  std::array<bool, kCategoryCount> taken{};
  CodeSet covered;
  const CodeSet others = set.complement();
  for (std::size_t i = 0; i < kCategoryCount; ++i) {
    const CodeSet& category = engine_categories()[i];
    const std::size_t inside = (category & set).ranges().size(), outside = (category & others).ranges().size();
    taken[i] = outside < inside && inside > 1;
    if (taken[i]) covered = covered | category;
  }
  ClassParts parts{{}, set - covered, covered - set};
  for (std::size_t i = 0; i < kCategoryCount;) {
    std::size_t end = i;
    bool all = true;
    for (; end < kCategoryCount && kCategoryNames[end][0] == kCategoryNames[i][0]; ++end) all = all && taken[end];
    for (std::size_t k = i; k < end; ++k) {
      if (!taken[k] || (all && k > i)) continue;
      parts.categories += fmt::format("\\p{{{}}}", all ? kCategoryNames[k].substr(0, 1) : kCategoryNames[k]);
      ++parts.cost;
    }
    i = end;
  }
  parts.cost += parts.beside.ranges().size() + 3 * parts.lacking.ranges().size();
  return parts;
}

}  // namespace

std::string pcre2_class(const CodeSet& set) {
  const auto& ranges = set.ranges();
  if (set.empty()) return "(?!)";
  if (ranges.size() == 1 && ranges[0].first == ranges[0].last) return character(ranges[0].first);
  const CodeSet others = set.complement();
  if (others.empty()) return "(?s:.)";
  const ClassParts has = parts_of(set), lacks = parts_of(others);
  const bool negated = lacks.cost < has.cost;
  const ClassParts& parts = negated ? lacks : has;
  const std::string text = (negated ? "[^" : "[") + parts.categories + ranges_text(parts.beside) + "]";
  if (parts.lacking.empty()) return text;
  const std::string odd = "[" + ranges_text(parts.lacking) + "]";
  return negated ? "(?:" + text + "|" + odd + ")" : "(?:(?!" + odd + ")" + text + ")";
}

}  // namespace switchyard

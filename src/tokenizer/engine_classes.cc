#include "tokenizer/engine_classes.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
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

// All characters in order, as runs of one category of PCRE2.
struct Run {
  CodeRange range;
  std::size_t category;
  bool space;  // \s has it
};

struct Engine {
  CodeSet disputed;
  std::vector<Run> all, undisputed;
};

std::vector<Run> runs_of(const std::array<CodeSet, kCategoryCount>& sets) {
  std::vector<Run> runs;
  for (std::size_t i = 0; i < kCategoryCount; ++i) {
    for (const CodeRange& range : sets[i].ranges()) runs.push_back({range, i, false});
  }
  std::ranges::sort(runs, {}, [](const Run& run) { return run.range.first; });
  return runs;
}

// Calls visit(run, part, whether the set has the part) for the parts of all runs, in order.
template <typename Visit>
void for_parts(const std::vector<Run>& runs, const CodeSet& set, const Visit& visit) {
  auto in = set.ranges().begin();
  for (const Run& run : runs) {
    for (std::uint32_t at = run.range.first; at <= run.range.last;) {
      while (in != set.ranges().end() && in->last < at) ++in;
      const bool inside = in != set.ranges().end() && in->first <= at;
      std::uint32_t last = run.range.last;
      if (in != set.ranges().end()) last = std::min(last, inside ? in->last : in->first - 1);
      visit(run, CodeRange{at, last}, inside);
      at = last + 1;
    }
  }
}

const Engine& engine() {
  static const Engine made = [] {
    Engine of;
    std::array<CodeSet, kCategoryCount> categories = read_categories();
    of.all = runs_of(categories);
    std::vector<CodeRange> disputed{{0x180e, 0x180e}};  // \s has it whatever its category
    for (std::size_t i = 0; i < kCategoryCount; ++i) {
      const CodeSet other = categories[i] - *class_named(kCategoryNames[i]);
      disputed.insert(disputed.end(), other.ranges().begin(), other.ranges().end());
    }
    of.disputed = CodeSet(std::move(disputed));
    const CodeSet undisputed = of.disputed.complement();
    for (CodeSet& category : categories) category = category & undisputed;
    const std::vector<Run> runs = runs_of(categories);
    for_parts(runs, *class_named("space"), [&of](const Run& run, const CodeRange& part, bool space) {
      of.undisputed.push_back({part, run.category, space});
    });
    return of;
  }();
  return made;
}

std::string character(std::uint32_t c) {
  const bool plain = c < 0x80 && (std::isalnum(static_cast<int>(c)) != 0);
  return plain ? std::string(1, static_cast<char>(c)) : fmt::format("\\x{{{:x}}}", c);
}

std::string ranges_text(const std::vector<CodeRange>& ranges) {
  std::string text;
  for (const CodeRange& range : ranges) {
    text += character(range.first);
    if (range.last > range.first + 1) text += '-';
    if (range.last > range.first) text += character(range.last);
  }
  return text;
}

// A set: the classes that hold most of it (\s and categories), further ranges, and ranges to leave out.
struct ClassParts {
  std::string common;
  std::vector<CodeRange> beside, lacking;
  std::size_t words = 0;  // of `common`
  std::size_t cost() const { return words + beside.size() + 3 * lacking.size(); }
};

ClassParts parts_of(const std::vector<Run>& runs, const CodeSet& set) {
  std::array<std::size_t, kCategoryCount> inside{}, outside{};
  bool spaces = false, no_space = false;
  for_parts(runs, set, [&](const Run& run, const CodeRange&, bool in) {
    if (run.space) (in ? spaces : no_space) = true;
    ++(in ? inside : outside)[run.category];
  });
  spaces = spaces && !no_space;  // all of them
  std::array<bool, kCategoryCount> taken{};
  for (std::size_t i = 0; i < kCategoryCount; ++i) {
    const bool blank = kCategoryNames[i][0] == 'Z' && spaces;
    taken[i] = outside[i] < inside[i] && inside[i] > 1 && !blank;
  }
  ClassParts parts;
  // Ranges go on over characters that are no matter: surrogates and disputed ones.
  std::vector<CodeRange>* open = nullptr;
  for_parts(runs, set, [&](const Run& run, const CodeRange& part, bool in) {
    if (run.space && spaces) {
      if (open == &parts.lacking) open = nullptr;
      return;
    }
    std::vector<CodeRange>* const list = in == taken[run.category] ? nullptr : in ? &parts.beside : &parts.lacking;
    if (list != nullptr && list == open)
      list->back().last = part.last;
    else if (list != nullptr)
      list->push_back(part);
    open = list;
  });
  if (spaces) {
    parts.common = "\\s";
    ++parts.words;
  }
  for (std::size_t i = 0; i < kCategoryCount;) {
    std::size_t end = i;
    bool all = true;
    for (; end < kCategoryCount && kCategoryNames[end][0] == kCategoryNames[i][0]; ++end) all = all && taken[end];
    for (std::size_t k = i; k < end; ++k) {
      if (!taken[k] || (all && k > i)) continue;
      parts.common += fmt::format("\\p{{{}}}", all ? kCategoryNames[k].substr(0, 1) : kCategoryNames[k]);
      ++parts.words;
    }
    i = end;
  }
  return parts;
}

}  // namespace

bool has_disputed(std::string_view text) {
  static const CodeSet& disputed = engine().disputed;
  static const std::vector<bool> pages = [] {
    std::vector<bool> has(0x1100);
    for (const CodeRange& range : disputed.ranges()) {
      for (std::uint32_t page = range.first >> 8; page <= range.last >> 8; ++page) has[page] = true;
    }
    return has;
  }();
  static const auto least = static_cast<unsigned char>(utf8_of(disputed.ranges()[0].first)[0]);
  constexpr std::size_t kBlock = 32;
  for (std::size_t begin = 0; begin < text.size(); begin += kBlock) {
    const std::string_view block = text.substr(begin, kBlock);
    unsigned char most = 0;
    for (const char c : block) most = std::max(most, static_cast<unsigned char>(c));
    for (std::size_t i = 0; most >= least && i < block.size(); ++i) {
      const auto lead = static_cast<unsigned char>(block[i]);
      if (lead < least || lead < 0xc0) continue;
      const std::uint32_t c = code_point(text.substr(begin + i));
      if (pages[c >> 8] && disputed.contains(c)) return true;
    }
  }
  return false;
}

std::string pcre2_class(const CodeSet& set, Texts texts) {
  const auto& ranges = set.ranges();
  if (set.empty()) return "(?!)";
  if (ranges.size() == 1 && ranges[0].first == ranges[0].last) return character(ranges[0].first);
  const CodeSet others = set.complement();
  if (others.empty()) return "(?s:.)";
  const std::vector<Run>& runs = texts == Texts::all ? engine().all : engine().undisputed;
  const ClassParts has = parts_of(runs, set), lacks = parts_of(runs, others);
  const bool negated = lacks.cost() < has.cost();
  const ClassParts& parts = negated ? lacks : has;
  if (parts.cost() == 0) return negated ? "(?s:.)" : "(?!)";  // of disputed characters only
  std::string text = (negated ? "[^" : "[") + parts.common + ranges_text(parts.beside) + "]";
  // One class alone is matched faster than a set of it.
  if (parts.words == 1 && parts.beside.empty()) {
    text = parts.common;
    if (negated) text[1] = static_cast<char>(text[1] - 'a' + 'A');
  }
  if (parts.lacking.empty()) return text;
  const std::string odd = "[" + ranges_text(parts.lacking) + "]";
  return negated ? "(?:" + text + "|" + odd + ")" : "(?:(?!" + odd + ")" + text + ")";
}

}  // namespace switchyard

#include "tokenizer/code_set.h"

#include <algorithm>
#include <map>
#include <string>

namespace switchyard {
namespace {

constexpr std::uint32_t kLast = 0x10ffff;
constexpr CodeRange kSurrogates{0xd800, 0xdfff};

// Runs of `table` (a character << shift | a value) as one set for each value.
std::vector<CodeSet> sets_of_starts(std::span<const std::uint32_t> table, int shift, std::size_t values) {
  std::vector<std::vector<CodeRange>> ranges(values);
  for (std::size_t i = 0; i < table.size(); ++i) {
    const std::uint32_t next = i + 1 < table.size() ? table[i + 1] >> shift : kLast + 1;
    ranges[table[i] & ((1u << shift) - 1)].push_back({table[i] >> shift, next - 1});
  }
  std::vector<CodeSet> sets;
  for (auto& one : ranges) sets.emplace_back(std::move(one));
  return sets;
}

const std::vector<CodeSet>& categories() {
  static const std::vector<CodeSet> sets = [] {
    std::vector<CodeSet> made = sets_of_starts(unicode_tables().categories, 5, kCategoryNames.size());
    const CodeSet planes(std::vector<CodeRange>{{0xf0000, 0xffffd}, {0x100000, 0x10fffd}});  // for private use
    made[27] = made[27] - planes;
    made[28] = made[28] | planes;
    return made;
  }();
  return sets;
}

// All categories whose names begin so; nothing for none.
std::optional<CodeSet> categories_named(std::string_view begin) {
  std::optional<CodeSet> all;
  for (std::size_t i = 0; i < kCategoryNames.size(); ++i) {
    std::string name(kCategoryNames[i]);
    name[0] = static_cast<char>(name[0] | 0x20);
    if (name.starts_with(begin)) all = all.value_or(CodeSet()) | categories()[i];
  }
  return all;
}

std::optional<CodeSet> script_named(std::string_view name) {
  static const std::vector<CodeSet> sets =
      sets_of_starts(unicode_tables().scripts, 8, unicode_tables().script_names.size() + 1);
  for (std::size_t i = 0; i < unicode_tables().script_names.size(); ++i) {
    for (std::string_view names = unicode_tables().script_names[i]; !names.empty();) {
      const std::size_t end = std::min(names.find('='), names.size());
      if (names.substr(0, end) == name) return sets[i + 1];
      names.remove_prefix(std::min(end + 1, names.size()));
    }
  }
  return name == "zzzz" || name == "unknown" ? std::optional(sets[0]) : std::nullopt;
}

CodeSet of(std::string_view categories) {
  CodeSet all;
  for (std::size_t at = 0; at < categories.size();) {
    const std::size_t end = std::min(categories.find(' ', at), categories.size());
    all = all | *categories_named(categories.substr(at, end - at));
    at = end + 1;
  }
  return all;
}

// Properties beside categories and scripts.
std::optional<CodeSet> property_named(std::string_view name) {
  const UnicodeTables& tables = unicode_tables();
  const auto alphabetic = [&] { return of("l nl") | CodeSet(tables.alphabetic); };
  const auto graph = [&] { return CodeSet(0, kLast) - of("z cc cn"); };
  if (name == "any") return CodeSet(0, kLast);
  if (name == "assigned") return of("cn").complement();
  if (name == "ascii") return CodeSet(0, 0x7f);
  if (name == "alpha" || name == "alphabetic") return alphabetic();
  if (name == "upper" || name == "uppercase") return of("lu") | CodeSet(tables.uppercase);
  if (name == "lower" || name == "lowercase") return of("ll") | CodeSet(tables.lowercase);
  if (name == "space" || name == "whitespace") return of("z") | CodeSet(0x9, 0xd) | CodeSet(0x85, 0x85);
  if (name == "alnum") return alphabetic() | of("nd");
  if (name == "digit") return of("nd");
  if (name == "blank") return of("zs") | CodeSet(0x9, 0x9);
  if (name == "cntrl") return of("cc");
  if (name == "graph") return graph();
  if (name == "print") return graph() | of("zs");
  if (name == "punct") return of("p");
  if (name == "xdigit") return CodeSet('0', '9') | CodeSet('A', 'F') | CodeSet('a', 'f');
  if (name == "word") return alphabetic() | of("m nd pc");
  if (name == "emoji") return CodeSet(tables.emoji);
  if (name == "extendedpictographic") return CodeSet(tables.extendedpictographic);
  if (name == "ideographic") return CodeSet(tables.ideographic);
  return {};
}

std::string plain_name(std::string_view name) {
  std::string plain;
  for (const char c : name) {
    if (c != ' ' && c != '_' && c != '-') plain += c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c;
  }
  return plain;
}

// The long names of categories.
std::string_view short_name(std::string_view name) {
  static const std::map<std::string_view, std::string_view> names = {
      {"letter", "l"}, {"uppercaseletter", "lu"}, {"lowercaseletter", "ll"}, {"titlecaseletter", "lt"},
      {"modifierletter", "lm"}, {"otherletter", "lo"}, {"mark", "m"}, {"combiningmark", "m"},
      {"nonspacingmark", "mn"}, {"spacingmark", "mc"}, {"enclosingmark", "me"}, {"number", "n"},
      {"decimalnumber", "nd"}, {"letternumber", "nl"}, {"othernumber", "no"}, {"punctuation", "p"},
      {"connectorpunctuation", "pc"}, {"dashpunctuation", "pd"}, {"openpunctuation", "ps"},
      {"closepunctuation", "pe"}, {"initialpunctuation", "pi"}, {"finalpunctuation", "pf"},
      {"otherpunctuation", "po"}, {"symbol", "s"}, {"mathsymbol", "sm"}, {"currencysymbol", "sc"},
      {"modifiersymbol", "sk"}, {"othersymbol", "so"}, {"separator", "z"}, {"spaceseparator", "zs"},
      {"lineseparator", "zl"}, {"paragraphseparator", "zp"}, {"other", "c"}, {"control", "cc"},
      {"format", "cf"}, {"unassigned", "cn"}, {"privateuse", "co"}};
  const auto found = names.find(name);
  return found == names.end() ? name : found->second;
}

}  // namespace

std::uint32_t mapped(std::span<const CodeMapping> mappings, std::uint32_t c) {
  auto found = std::ranges::upper_bound(mappings, c, {}, &CodeMapping::first);
  // Runs of every second character may hold others between.
  for (int back = 0; back < 2 && found != mappings.begin(); ++back) {
    --found;
    if (c <= found->last && (c - found->first) % static_cast<std::uint32_t>(found->step) == 0)
      return static_cast<std::uint32_t>(static_cast<std::int32_t>(c) + found->by);
  }
  return c;
}

bool in_ranges(std::span<const CodeRange> ranges, std::uint32_t c) {
  const auto found = std::ranges::lower_bound(ranges, c, {}, &CodeRange::last);
  return found != ranges.end() && found->first <= c;
}

CodeSet::CodeSet(std::vector<CodeRange> ranges) {
  if (!std::ranges::is_sorted(ranges, {}, &CodeRange::first)) std::ranges::sort(ranges, {}, &CodeRange::first);
  for (CodeRange range : ranges) {
    // A range over the surrogates is one before and one behind them.
    for (const CodeRange part : {CodeRange{range.first, std::min(range.last, kSurrogates.first - 1)},
                                 CodeRange{std::max(range.first, kSurrogates.last + 1), range.last}}) {
      if (part.first > part.last) continue;
      if (!ranges_.empty() && part.first <= ranges_.back().last + 1)
        ranges_.back().last = std::max(ranges_.back().last, part.last);
      else
        ranges_.push_back(part);
    }
  }
}

CodeSet CodeSet::operator|(const CodeSet& other) const {
  std::vector<CodeRange> all(ranges_.size() + other.ranges_.size());
  std::ranges::merge(ranges_, other.ranges_, all.begin(), {}, &CodeRange::first, &CodeRange::first);
  return CodeSet(std::move(all));
}

CodeSet CodeSet::operator&(const CodeSet& other) const {
  std::vector<CodeRange> both;
  auto a = ranges_.begin(), b = other.ranges_.begin();
  while (a != ranges_.end() && b != other.ranges_.end()) {
    const CodeRange shared{std::max(a->first, b->first), std::min(a->last, b->last)};
    if (shared.first <= shared.last) both.push_back(shared);
    (a->last < b->last ? a : b)++;
  }
  return CodeSet(std::move(both));
}

CodeSet CodeSet::complement() const {
  std::vector<CodeRange> others;
  std::uint32_t next = 0;
  for (const CodeRange& range : ranges_) {
    if (range.first > next) others.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kLast) others.push_back({next, kLast});
  return CodeSet(std::move(others));
}

CodeSet CodeSet::folded() const {
  std::vector<CodeRange> lowest, all = ranges_;
  for (const CodeMapping& run : unicode_tables().folded) {
    for (std::uint32_t c = run.first; c <= run.last; c += static_cast<std::uint32_t>(run.step)) {
      const auto low = static_cast<std::uint32_t>(static_cast<std::int32_t>(c) + run.by);
      if (contains(c)) lowest.push_back({low, low});
    }
  }
  all.insert(all.end(), lowest.begin(), lowest.end());
  const CodeSet lows(all);
  for (const CodeMapping& run : unicode_tables().folded) {
    for (std::uint32_t c = run.first; c <= run.last; c += static_cast<std::uint32_t>(run.step)) {
      if (lows.contains(static_cast<std::uint32_t>(static_cast<std::int32_t>(c) + run.by))) all.push_back({c, c});
    }
  }
  return CodeSet(std::move(all));
}

std::optional<CodeSet> class_named(std::string_view name) {
  const std::string plain = plain_name(name);
  if (plain == "lc") return of("lu ll lt");
  if (auto property = property_named(plain)) return property;
  const std::string_view brief = short_name(plain);
  if (!brief.empty() && brief.size() <= 2) return categories_named(brief);
  return script_named(plain);
}

std::optional<CodeSet> class_alone(std::string_view name) {
  auto found = class_named(name);
  if (plain_name(name) == "word") found = *found | CodeSet(0xb2, 0xb3) | CodeSet(0xb9, 0xb9) | CodeSet(0xbc, 0xbe);
  return found;
}

std::optional<CodeSet> posix_class(std::string_view name) {
  if (name == "punct") return of("p s");
  for (const char* known : {"alpha", "digit", "alnum", "upper", "lower", "space", "blank", "cntrl", "graph", "print",
                            "word", "xdigit", "ascii"}) {
    if (name == known) return property_named(name);
  }
  return {};
}

}  // namespace switchyard

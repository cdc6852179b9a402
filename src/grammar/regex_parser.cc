#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>

#include "grammar/grammar.h"
#include "grammar/regex.h"

namespace switchyard::grammar {

namespace {

constexpr std::int64_t max_repetitions = 10'000;
constexpr int max_regex_depth = 64;

CodePoints class_of(std::uint32_t letter) {
  CodePoints set;
  switch (letter) {
    case 'd':
    case 'D':
      set.add('0', '9');
      break;
    case 'w':
    case 'W':
      set.add('0', '9');
      set.add('A', 'Z');
      set.add('a', 'z');
      set.add('_', '_');
      break;
    case 's':
      set.add('\t', '\r');
      set.add(' ', ' ');
      break;
    case 'S':  // also without spaces that only some languages call so
      for (auto [first, last] : std::array<CodePoints::Range, 10>{{{'\t', '\r'},
                                                                   {0x1C, 0x20},
                                                                   {0x85, 0x85},
                                                                   {0xA0, 0xA0},
                                                                   {0x1680, 0x1680},
                                                                   {0x2000, 0x200A},
                                                                   {0x2028, 0x2029},
                                                                   {0x202F, 0x205F},
                                                                   {0x3000, 0x3000},
                                                                   {0xFEFF, 0xFEFF}}}) {
        set.add(first, last);
      }
      break;
    default:
      break;
  }
  return letter == 'D' || letter == 'W' || letter == 'S' ? set.complement() : set;
}

// Any code point but line ends of any language.
CodePoints dot() {
  CodePoints ends('\n', '\n');
  ends.add('\r', '\r');
  ends.add(0x2028, 0x2029);
  return ends.complement();
}

class RegexParser {
 public:
  explicit RegexParser(std::string_view pattern) : points_(code_points_of(pattern)) {}

  Regex parse() {
    Regex regex = parse_choice(0);
    if (!at_end()) fail("a ) without its (");
    return regex;
  }

 private:
  [[noreturn]] void fail(std::string_view what) const {
    throw GrammarError(fmt::format("{} at character {} of a regular expression", what, at_));
  }
  bool at_end() const { return at_ == points_.size(); }
  std::uint32_t peek() const { return at_end() ? 0xFFFFFFFF : points_[at_]; }
  std::uint32_t take() {
    if (at_end()) fail("an end too early");
    return points_[at_++];
  }
  bool take_if(std::uint32_t point) {
    if (peek() != point) return false;
    ++at_;
    return true;
  }

  Regex parse_choice(int depth) {
    if (depth > max_regex_depth) fail("groups nested too deep");
    Regex made;
    made.kind = Regex::Kind::choice;
    do {
      made.of.push_back(parse_sequence(depth));
    } while (take_if('|'));
    if (made.of.size() == 1) return Regex(std::move(made.of.front()));
    return made;
  }

  Regex parse_sequence(int depth) {
    Regex made;
    while (!at_end() && peek() != '|' && peek() != ')') made.of.push_back(parse_repeat(depth));
    return made;
  }

  Regex parse_repeat(int depth) {
    Regex atom = parse_atom(depth);
    std::int64_t min = 0, max = -1;
    if (take_if('?')) {
      max = 1;
    } else if (take_if('+')) {
      min = 1;
    } else if (!take_if('*') && !parse_count(min, max)) {
      return atom;
    }
    take_if('?');  // a lazy repeat has the same texts
    if (peek() == '+' || peek() == '*' || peek() == '?') fail("a repetition of a repetition");
    if (atom.kind == Regex::Kind::begin || atom.kind == Regex::Kind::end) fail("a repeated ^ or $");
    Regex made;
    made.kind = Regex::Kind::repeat;
    made.of.push_back(std::move(atom));
    made.min = min;
    made.max = max;
    return made;
  }

  // {3}, {3,}, {3,5}; another { is a character.
  bool parse_count(std::int64_t& min, std::int64_t& max) {
    const std::size_t before = at_;
    if (!take_if('{')) return false;
    std::optional<std::int64_t> from = parse_number();
    std::optional<std::int64_t> to = from;
    if (from && take_if(',')) to = peek() == '}' ? std::optional<std::int64_t>(-1) : parse_number();
    if (!from || !to || !take_if('}')) {
      at_ = before;
      return false;
    }
    if (*from > max_repetitions || *to > max_repetitions) fail("more than 10,000 repetitions");
    if (*to >= 0 && *to < *from) fail("repetitions in the wrong order");
    min = *from;
    max = *to;
    return true;
  }

  std::optional<std::int64_t> parse_number() {
    std::int64_t value = 0;
    const std::size_t before = at_;
    while (peek() >= '0' && peek() <= '9') value = std::min(value * 10 + (take() - '0'), max_repetitions + 1);
    if (at_ == before) return std::nullopt;
    return value;
  }

  static Regex of_set(CodePoints set) {
    Regex made;
    made.kind = Regex::Kind::set;
    made.set = std::move(set);
    return made;
  }

  Regex parse_atom(int depth) {
    Regex made;
    switch (const std::uint32_t point = take(); point) {
      case '^':
        made.kind = Regex::Kind::begin;
        return made;
      case '$':
        made.kind = Regex::Kind::end;
        return made;
      case '.':
        return of_set(dot());
      case '(':
        return parse_group(depth);
      case '[':
        return of_set(parse_class());
      case '\\':
        return of_set(parse_escape(false));
      case '*':
      case '+':
      case '?':
        fail("nothing to repeat");
      case '{':
        --at_;
        if (std::int64_t min, max; parse_count(min, max)) fail("nothing to repeat");
        ++at_;
        [[fallthrough]];
      default:
        return of_set({point, point});
    }
  }

  Regex parse_group(int depth) {
    if (take_if('?')) {
      if (take_if('<')) {
        if (peek() == '=' || peek() == '!') fail("a look-behind, which is not kept,");
        while (take() != '>') {
        }
      } else if (peek() == '=' || peek() == '!') {
        fail("a look-ahead, which is not kept,");
      } else if (!take_if(':')) {
        fail("a kind of group that is not kept");
      }
    }
    Regex made = parse_choice(depth + 1);
    if (!take_if(')')) fail("a ( without its )");
    return made;
  }

  std::uint32_t parse_hex(int digits) {
    std::uint32_t value = 0;
    for (int i = 0; i < digits; ++i) {
      const std::uint32_t digit = take();
      const std::uint32_t lower = digit | 0x20;
      if (digit >= '0' && digit <= '9') {
        value = value * 16 + (digit - '0');
      } else if (lower >= 'a' && lower <= 'f') {
        value = value * 16 + (lower - 'a' + 10);
      } else {
        fail("a wrong \\x or \\u");
      }
    }
    return value;
  }

  std::uint32_t parse_unicode() {
    if (take_if('{')) {
      int digits = 0;
      while (at_ + static_cast<std::size_t>(digits) < points_.size() &&
             points_[at_ + static_cast<std::size_t>(digits)] != '}')
        ++digits;
      if (digits == 0 || digits > 6) fail("a wrong \\u");
      const std::uint32_t value = parse_hex(digits);
      if (!take_if('}')) fail("a wrong \\u");
      return value;
    }
    const std::uint32_t value = parse_hex(4);
    if (value < 0xD800 || value > 0xDBFF) return value;
    if (!take_if('\\') || !take_if('u')) fail("half a surrogate pair");
    const std::uint32_t low = parse_hex(4);
    if (low < 0xDC00 || low > 0xDFFF) fail("half a surrogate pair");
    return 0x10000 + ((value - 0xD800) << 10) + (low - 0xDC00);
  }

  CodePoints parse_escape(bool in_class) {
    const std::uint32_t letter = take();
    const auto single = [](std::uint32_t point) { return CodePoints(point, point); };
    switch (letter) {
      case 'd':
      case 'D':
      case 'w':
      case 'W':
      case 's':
      case 'S':
        return class_of(letter);
      case 't':
        return single('\t');
      case 'n':
        return single('\n');
      case 'r':
        return single('\r');
      case 'f':
        return single('\f');
      case 'v':
        return single('\v');
      case '0':
        if (peek() >= '0' && peek() <= '9') fail("an octal escape, which is not kept,");
        return single(0);
      case 'x':
        return single(parse_hex(2));
      case 'u':
        return single(parse_unicode());
      case 'b':
        if (in_class) return single('\b');
        [[fallthrough]];
      case 'B':
        fail("a word boundary, which is not kept,");
      case 'p':
      case 'P':
        fail("a Unicode property, which is not kept,");
      default:
        break;
    }
    if (letter >= '1' && letter <= '9') fail("a back-reference, which is not kept,");
    if ((letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z')) fail("an unknown escape");
    return single(letter);
  }

  CodePoints parse_class() {
    const bool negated = take_if('^');
    CodePoints set;
    while (!take_if(']')) {
      const CodePoints first = parse_class_atom();
      const bool is_range = peek() == '-' && at_ + 1 < points_.size() && points_[at_ + 1] != ']';
      if (!is_range) {
        set.add(first);
        continue;
      }
      take();
      const CodePoints last = parse_class_atom();
      if (!is_single(first) || !is_single(last)) {  // [\w-.]: the - is a character
        set.add(first);
        set.add('-', '-');
        set.add(last);
        continue;
      }
      const std::uint32_t from = first.ranges()[0].first, to = last.ranges()[0].first;
      if (from > to) fail("a range in the wrong order");
      set.add(from, to);
    }
    return negated ? set.complement() : set;
  }

  static bool is_single(const CodePoints& set) {
    return set.ranges().size() == 1 && set.ranges()[0].first == set.ranges()[0].second;
  }

  CodePoints parse_class_atom() {
    const std::uint32_t point = take();
    return point == '\\' ? parse_escape(true) : CodePoints(point, point);
  }

  std::vector<std::uint32_t> points_;
  std::size_t at_ = 0;
};

}  // namespace

Regex parse_regex(std::string_view pattern) {
  return RegexParser(pattern).parse();
}

}  // namespace switchyard::grammar

#include "tokenizer/pattern.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "core/error.h"
#include "core/json_file.h"
#include "tokenizer/code_set.h"
#include "tokenizer/unicode.h"

namespace switchyard {
namespace {

struct Flags {
  bool fold = false, dot_all = false, extended = false;
};

class Translation {
 public:
  Translation(std::string_view pattern, const std::string& where, Texts texts)
      : pattern_(pattern), where_(where), texts_(texts) {
    for (std::size_t at = 0; at < pattern.size(); at += utf8_length(pattern, at)) {
      if (utf8_length(pattern, at) == 0) fail_usage("[tokenizer] {}: a pattern is not UTF-8 (byte {})", where, at);
    }
  }

  std::string whole() {
    const std::string text = alternatives({});
    if (!done()) refuse("a ) without its (");
    return text;
  }

 private:
  std::string one_of(const CodeSet& set) const { return pcre2_class(set, texts_); }
  bool done() const { return at_ >= pattern_.size(); }
  char peek(std::size_t ahead = 0) const { return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0'; }
  bool begins(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }
  bool take(std::string_view text) {
    const bool found = begins(text);
    if (found) at_ += text.size();
    return found;
  }
  std::string_view until(char end) {
    const std::size_t place = pattern_.find(end, at_);
    if (place == std::string_view::npos) refuse(fmt::format("no {} that ends what begins here", end));
    const std::string_view text = pattern_.substr(at_, place - at_);
    at_ = place + 1;
    return text;
  }

  // Up to the ) of the group, or the end.
  std::string alternatives(Flags flags) {
    if (++depth_ > 200) refuse("more than 200 groups in each other");
    std::string text;
    while (!done() && peek() != ')') {
      if (flags.extended && skip_blank()) continue;
      if (take("|"))
        text += '|';
      else
        text += quantified(atom(flags));
    }
    --depth_;
    return text;
  }

  bool skip_blank() {
    if (peek() == '#') {
      at_ = std::min(pattern_.find('\n', at_), pattern_.size());
      return true;
    }
    const bool blank = peek() == ' ' || (peek() >= '\t' && peek() <= '\r');
    if (blank) ++at_;
    return blank;
  }

  std::string atom(Flags flags) {
    switch (peek()) {
      case '(':
        return group(flags);
      case '[':
        return one_of(set(flags.fold));
      case '\\':
        return escape(flags);
      case '.':
        ++at_;
        return flags.dot_all ? "(?s:.)" : "[^\\n]";
      case '^':
      case '$':
        return std::string(1, pattern_[at_++]);
      case '*':
      case '+':
      case '?':
        refuse("a quantifier with nothing before it");
      default:
        return letters(next_character(), flags);
    }
  }

  // Appends one or more quantifiers: each further one repeats the expression that those before it make.
  std::string quantified(std::string text) {
    for (int count = 0;; ++count) {
      const std::string repeat = quantifier();
      if (repeat.empty()) return text;
      if (count > 0) text = "(?:" + text + ")";
      text += repeat;
    }
  }

  std::string quantifier() {
    if (peek() == '*' || peek() == '+' || peek() == '?') {
      std::string text(1, pattern_[at_++]);
      if (peek() == '?' || peek() == '+') text += pattern_[at_++];
      return text;
    }
    if (peek() != '{') return "";
    std::size_t at = at_ + 1;
    const auto number = [&]() -> std::optional<int> {
      int value = 0;
      const auto read = std::from_chars(pattern_.data() + at, pattern_.data() + pattern_.size(), value);
      if (read.ec != std::errc() || value < 0) return {};
      at = static_cast<std::size_t>(read.ptr - pattern_.data());
      return value;
    };
    const auto least = number();
    const bool comma = at < pattern_.size() && pattern_[at] == ',';
    if (comma) ++at;
    const auto most = comma ? number() : least;
    if (at >= pattern_.size() || pattern_[at] != '}' || (!least && !most)) return "";  // stands for itself
    if (least && most && *least > *most) refuse("a quantifier of more than its end");
    at_ = at + 1;
    std::string text = fmt::format("{{{}", least.value_or(0));
    if (comma) text += most ? fmt::format(",{}", *most) : ",";
    text += '}';
    // A + behind is a quantifier of its own, and so is a ? behind one number.
    if (comma && take("?")) text += '?';
    return text;
  }

  std::string group(Flags flags) {
    const std::size_t begin = at_++;
    if (take("?#")) {
      until(')');
      return "";
    }
    std::string open = "(";
    for (const char* kind : {"?:", "?=", "?!", "?<=", "?<!", "?>"}) {
      if (open == "(" && take(kind)) open += kind;
    }
    if (open == "(" && (begins("?<") || begins("?'"))) {
      const char end = peek(1) == '<' ? '>' : '\'';
      at_ += 2;
      open += fmt::format("?<{}>", until(end));
    } else if (open == "(" && peek() == '?') {
      return options(flags);
    } else if (open == "(" && peek() == '*') {
      refuse("a (* of the engine");
    }
    const std::string text = open + alternatives(flags) + ")";
    if (!take(")")) {
      at_ = begin;
      refuse("a ( without its )");
    }
    return text;
  }

  // (?i), which holds to the end of the group around it, or (?i:...).
  std::string options(Flags flags) {
    const std::size_t begin = at_ - 1;
    ++at_;
    bool on = true;
    for (; peek() != ':' && peek() != ')'; ++at_) {
      if (peek() == '-')
        on = false;
      else if (peek() == 'i')
        flags.fold = on;
      else if (peek() == 'm')
        flags.dot_all = on;
      else if (peek() == 'x')
        flags.extended = on;
      else
        refuse_at(begin, fmt::format("the group {}", in_quotes(pattern_.substr(begin, at_ + 1 - begin))));
    }
    const bool own = pattern_[at_++] == ':';
    std::string text = "(?:" + alternatives(flags) + ")";
    if (own && !take(")")) refuse_at(begin, "a ( without its )");
    return text;
  }

  std::uint32_t next_character() {
    const std::size_t length = utf8_length(pattern_, at_);
    const std::uint32_t c = code_point(pattern_.substr(at_, length));
    at_ += length;
    return c;
  }

  // A letter, or several in a row that are one letter where case does not matter: "ss" is "\u00df" as well.
  std::string letters(std::uint32_t c, Flags flags) {
    if (!flags.fold) return one_of(CodeSet(c, c));
    struct Fold {
      std::string_view row;
      std::array<std::uint32_t, 2> letters;
    };
    static constexpr Fold kFolds[] = {{"ffi", {0xfb03, 0xfb03}}, {"ffl", {0xfb04, 0xfb04}}, {"ss", {0xdf, 0x1e9e}},
                                      {"ff", {0xfb00, 0xfb00}},  {"fi", {0xfb01, 0xfb01}},  {"fl", {0xfb02, 0xfb02}},
                                      {"st", {0xfb05, 0xfb06}}};
    const auto row_text = [&](std::string_view row) {
      std::string text;
      for (const char letter : row)
        text += one_of(CodeSet(static_cast<std::uint32_t>(letter), static_cast<std::uint32_t>(letter)).folded());
      return text;
    };
    for (const Fold& fold : kFolds) {
      const CodeSet whole = CodeSet(fold.letters[0], fold.letters[0]) | CodeSet(fold.letters[1], fold.letters[1]);
      bool in_row = (c | 0x20u) == static_cast<unsigned char>(fold.row[0]) && c < 0x80;
      for (std::size_t i = 1; in_row && i < fold.row.size(); ++i)
        in_row = static_cast<char>(peek(i - 1) | 0x20) == fold.row[i] && peek(i - 1) > 0x40;
      if (in_row) {
        const char behind = peek(fold.row.size() - 1);
        if (behind == '*' || behind == '+' || behind == '?' || behind == '{') in_row = false;  // repeats one letter
      }
      if (!in_row && !whole.contains(c)) continue;
      if (in_row) at_ += fold.row.size() - 1;
      return "(?:" + row_text(fold.row) + "|" + one_of(whole) + ")";
    }
    if (has_long_fold(c)) refuse(fmt::format("{} without regard to case", in_quotes(utf8_of(c))));
    return one_of(CodeSet(c, c).folded());
  }

  // Characters that are several of the other case.
  static bool has_long_fold(std::uint32_t c) {
    static const CodeSet all(std::vector<CodeRange>{{0xdf, 0xdf}, {0x130, 0x130}, {0x149, 0x149}, {0x1f0, 0x1f0}, {0x390, 0x390},
                                                    {0x3b0, 0x3b0}, {0x587, 0x587}, {0x1e96, 0x1e9a}, {0x1e9e, 0x1e9e}, {0x1f50, 0x1f50},
                                                    {0x1f52, 0x1f52}, {0x1f54, 0x1f54}, {0x1f56, 0x1f56}, {0x1f80, 0x1faf},
                                                    {0x1fb2, 0x1fb4}, {0x1fb6, 0x1fb7}, {0x1fbc, 0x1fbc}, {0x1fc2, 0x1fc4},
                                                    {0x1fc6, 0x1fc7}, {0x1fcc, 0x1fcc}, {0x1fd2, 0x1fd3}, {0x1fd6, 0x1fd7},
                                                    {0x1fe2, 0x1fe4}, {0x1fe6, 0x1fe7}, {0x1ff2, 0x1ff4}, {0x1ff6, 0x1ff7},
                                                    {0x1ffc, 0x1ffc}, {0xfb00, 0xfb06}, {0xfb13, 0xfb17}});
    return all.contains(c);
  }

  std::string escape(Flags flags) {
    const std::size_t begin = at_;
    if (const auto found = class_escape(class_alone)) return one_of(*found);
    const char letter = peek(1);
    const std::string word = letter == 'b' || letter == 'B' ? one_of(*class_alone("word")) : "";
    switch (letter) {
      case 'b':
        at_ += 2;
        return "(?:(?<=" + word + ")(?!" + word + ")|(?<!" + word + ")(?=" + word + "))";
      case 'B':
        at_ += 2;
        return "(?:(?<=" + word + ")(?=" + word + ")|(?<!" + word + ")(?!" + word + "))";
      case 'A':
      case 'Z':
      case 'z':
      case 'G':
      case 'K':
        at_ += 2;
        return {'\\', letter};
      case 'R':
        at_ += 2;
        return R"((?>\r\n|[\n-\r\x{85}\x{2028}\x{2029}]))";
      case 'N':
        at_ += 2;
        return "[^\\n]";
      case 'O':
        at_ += 2;
        return "(?s:.)";
      default:
        break;
    }
    if (letter >= '1' && letter <= '9') {
      if (flags.fold) refuse_at(begin, "a reference to a group without regard to case");
      if (peek(2) >= '0' && peek(2) <= '9') refuse_at(begin, "a reference of two digits");
      at_ += 2;
      return fmt::format("\\g{{{}}}", letter);
    }
    if (letter == 'k' && peek(2) == '<') {
      if (flags.fold) refuse_at(begin, "a reference to a group without regard to case");
      at_ += 3;
      return fmt::format("\\k<{}>", until('>'));
    }
    return letters(character_escape(), flags);
  }

  // \s, \p{...} and their like; nothing for another escape.
  std::optional<CodeSet> class_escape(std::optional<CodeSet> (*class_of_name)(std::string_view)) {
    const std::size_t begin = at_;
    const char letter = peek(1), small = static_cast<char>(letter | 0x20);
    const char* const name = small == 's'   ? "space"
                             : small == 'w' ? "word"
                             : small == 'd' ? "digit"
                             : small == 'h' ? "xdigit"
                                            : nullptr;
    if (name != nullptr) {
      at_ += 2;
      return letter == small ? *class_of_name(name) : class_of_name(name)->complement();
    }
    if (small != 'p' || peek(2) != '{') return {};
    at_ += 3;
    std::string_view wanted = until('}');
    bool negated = letter == 'P';
    if (wanted.starts_with('^')) {
      negated = !negated;
      wanted.remove_prefix(1);
    }
    const auto found = class_of_name(wanted);
    if (!found) refuse_at(begin, fmt::format("the class {}", in_quotes(pattern_.substr(begin, at_ - begin))));
    return negated ? found->complement() : *found;
  }

  // Reads an escape that means one character.
  std::uint32_t character_escape() {
    const std::size_t begin = at_++;
    if (done()) refuse_at(begin, "a \\ at the end");
    const char letter = pattern_[at_++];
    constexpr std::string_view kNames = "tnrfvae0";
    constexpr std::string_view kMeant = "\t\n\r\f\v\a\x1b";
    const auto hex = [&](std::size_t least, std::size_t most) {
      std::uint32_t value = 0;
      const std::size_t end = std::min(at_ + most, pattern_.size());
      const auto read = std::from_chars(pattern_.data() + at_, pattern_.data() + end, value, 16);
      const auto count = static_cast<std::size_t>(read.ptr - pattern_.data()) - at_;
      if (read.ec != std::errc() || count < least) refuse_at(begin, "an escape without its digits");
      at_ += count;
      return value;
    };
    std::uint32_t value = 0;
    if (letter == 'x' && take("{")) {
      value = hex(1, 8);
      if (!take("}")) refuse_at(begin, "an escape \\x{ without its }");
    } else if (letter == 'x') {
      value = hex(1, 2);
      if (value > 0x7f) refuse_at(begin, "a byte that is no character, expected \\x{...}");
    } else if (letter == 'u') {
      value = hex(4, 4);
    } else if (letter == '0' && (peek() < '0' || peek() > '7')) {
      value = 0;
    } else if (const std::size_t name = kNames.find(letter); letter != '0' && name != std::string_view::npos) {
      value = static_cast<unsigned char>(kMeant[name]);
    } else if ((letter >= '0' && letter <= '9') || (letter >= 'A' && letter <= 'Z') || (letter >= 'a' && letter <= 'z')) {
      refuse_at(begin, fmt::format("the escape \\{}", letter));
    } else {
      --at_;
      value = next_character();
    }
    if (value > 0x10ffff || (value >= 0xd800 && value <= 0xdfff)) refuse_at(begin, "an escape for no character");
    return value;
  }

  // A set in brackets: a union of characters, ranges, classes and sets; && intersects what is around it.
  // `fold`: with the letters of either case, as the engine adds them to the outermost set before it is negated.
  CodeSet set(bool fold) {
    const std::size_t begin = at_++;
    if (++depth_ > 200) refuse("more than 200 sets in each other");
    const bool negated = take("^");
    std::optional<CodeSet> intersection;
    std::vector<CodeRange> single;
    CodeSet parts;
    const auto close_part = [&] {
      parts = parts | CodeSet(std::exchange(single, {}));
      intersection = intersection ? *intersection & parts : parts;
      parts = {};
    };
    bool first = true;
    for (;; first = false) {
      if (done()) refuse_at(begin, "a [ without its ]");
      if (peek() == ']' && !(first && pattern_.find(']', at_ + 1) != std::string_view::npos)) break;
      if (take("&&")) {
        close_part();
      } else if (const auto found = nested()) {
        parts = parts | *found;
      } else {
        const std::size_t place = at_;
        single.push_back(range());
        if (fold && single.back().first == single.back().last && has_long_fold(single.back().first))
          refuse_at(place, fmt::format("{} in a set without regard to case", in_quotes(utf8_of(single.back().first))));
      }
    }
    ++at_;
    close_part();
    --depth_;
    const CodeSet whole = fold ? intersection->folded() : *intersection;
    return negated ? whole.complement() : whole;
  }

  // A set or a class within a set.
  std::optional<CodeSet> nested() {
    if (begins("[:")) {
      const std::size_t end = pattern_.find(":]", at_ + 2);
      std::string_view name = pattern_.substr(at_ + 2, end == std::string_view::npos ? 0 : end - at_ - 2);
      const bool negated = name.starts_with('^');
      if (negated) name.remove_prefix(1);
      const auto found = posix_class(name);
      if (!found) refuse(fmt::format("the class {}", in_quotes(pattern_.substr(at_, std::min(end, at_ + 20) + 2 - at_))));
      at_ = end + 2;
      return negated ? found->complement() : *found;
    }
    if (peek() == '[') return set(false);
    return peek() == '\\' ? class_escape(class_named) : std::nullopt;
  }

  CodeRange range() {
    const std::size_t begin = at_;
    const std::uint32_t from = member();
    // A dash before the end, or behind a range, is an ordinary character.
    if (peek() != '-' || peek(1) == ']' || peek(1) == '\0' || begins("-&&") || begins("-[")) return {from, from};
    ++at_;
    if (peek() == '\\') {
      const std::size_t place = at_;
      if (class_escape(class_named)) refuse_at(begin, "a range that ends with a class");
      at_ = place;
    }
    const std::uint32_t to = member();
    if (to < from) refuse_at(begin, "a range whose end lies before its beginning");
    return {from, to};
  }

  std::uint32_t member() {
    if (take("\\b")) return 0x8;
    return peek() == '\\' ? character_escape() : next_character();
  }

  [[noreturn]] void refuse(const std::string& what) const { refuse_at(at_, what); }
  [[noreturn]] void refuse_at(std::size_t place, const std::string& what) const {
    fail_usage("[tokenizer] {}: {} in a pattern is not supported (byte {} of {})", where_, what, place,
               in_quotes(pattern_));
  }

  std::string_view pattern_;
  const std::string& where_;
  Texts texts_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

std::string pcre2_pattern(std::string_view pattern, const std::string& where, Texts texts) {
  return Translation(pattern, where, texts).whole();
}

}  // namespace switchyard

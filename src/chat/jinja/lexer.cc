#include "chat/jinja/lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace switchyard::jinja {

namespace {

using Type = Token::Type;

std::string with_plain_line_ends(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\r') {
      out += text[i];
    } else {
      out += '\n';
      if (i + 1 < text.size() && text[i + 1] == '\n') ++i;
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string text) : text_(std::move(text)) {}

  std::vector<Token> tokens() {
    while (at_ < text_.size()) read_data();
    add(Type::end);
    return std::move(tokens_);
  }

 private:
  std::string_view rest() const { return std::string_view(text_).substr(at_); }
  bool starts(std::string_view with) const { return rest().substr(0, with.size()) == with; }

  void add(Type type, std::string text = {}) { tokens_.push_back({type, std::move(text), 0, 0, line_}); }

  void move_to(std::size_t at) {
    line_ += static_cast<int>(std::count(text_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         text_.begin() + static_cast<std::ptrdiff_t>(at), '\n'));
    at_ = at;
    line_starts_ = at_ == 0 || text_[at_ - 1] == '\n';
  }

  void skip_space() {
    std::size_t at = at_;
    while (at < text_.size()) {
      const CodePoint point = code_point_at(text_, at);
      if (!is_space(point.value)) break;
      at = point.next;
    }
    move_to(at);
  }

  std::size_t next_tag() const {
    for (std::size_t at = text_.find('{', at_); at != std::string::npos; at = text_.find('{', at + 1)) {
      const char kind = at + 1 < text_.size() ? text_[at + 1] : '\0';
      if (kind == '{' || kind == '%' || kind == '#') return at;
    }
    return std::string::npos;
  }

  // The data before a tag at `tag`, cut as the tag's sign and lstrip_blocks say.
  void add_data_before(std::size_t tag, std::size_t tag_size, bool is_variable) {
    std::string_view data = rest().substr(0, tag - at_);
    const char sign = tag + tag_size < text_.size() ? text_[tag + tag_size] : '\0';
    if (sign == '-') {
      data = data.substr(0, stripped(data, Sides::right).end);
    } else if (sign != '+' && !is_variable) {
      const std::size_t line_end = data.rfind('\n');
      const std::size_t begin = line_end == std::string_view::npos ? 0 : line_end + 1;
      const bool blank = stripped(data.substr(begin), Sides::both).begin == data.size() - begin;
      if ((begin > 0 || line_starts_) && blank) data = data.substr(0, begin);
    }
    if (!data.empty()) add(Type::data, std::string(data));
  }

  bool takes_sign() const { return at_ < text_.size() && (text_[at_] == '-' || text_[at_] == '+'); }

  void read_data() {
    const std::size_t tag = next_tag();
    if (tag == std::string::npos) {
      add(Type::data, std::string(rest()));
      at_ = text_.size();
      return;
    }
    const char kind = text_[tag + 1];
    add_data_before(tag, 2, kind == '{');
    move_to(tag);
    if (kind == '%' && read_raw()) return;
    at_ += 2;
    if (takes_sign()) ++at_;
    if (kind == '#') {
      read_comment();
    } else {
      read_tag(kind == '{');
    }
  }

  void read_comment() {
    const std::size_t end = text_.find("#}", at_);
    if (end == std::string::npos) fail_syntax("Missing end of comment tag", line_);
    const char sign = end > at_ ? text_[end - 1] : '\0';
    move_to(end + 2);
    after_end(sign);
  }

  // Takes the line end, or all white space, that follows the end of a block or comment.
  void after_end(char sign) {
    if (sign == '-') {
      skip_space();
    } else if (sign != '+' && at_ < text_.size() && text_[at_] == '\n') {
      move_to(at_ + 1);
    }
  }

  void skip_word_space(std::size_t& at) const {
    while (at < text_.size() && is_space(code_point_at(text_, at).value)) at = code_point_at(text_, at).next;
  }

  // The end of `{% word %}` at `at` (0: there is no such block), and the sign before that end.
  std::size_t end_of_word_tag(std::size_t at, std::string_view word, char& sign) const {
    at += 2;
    if (at < text_.size() && (text_[at] == '-' || text_[at] == '+')) ++at;
    skip_word_space(at);
    if (std::string_view(text_).substr(at, word.size()) != word) return 0;
    at += word.size();
    skip_word_space(at);
    sign = at < text_.size() ? text_[at] : '\0';
    if (sign == '-' || sign == '+') ++at;
    return std::string_view(text_).substr(at, 2) == "%}" ? at + 2 : 0;
  }

  bool read_raw() {
    char sign = '\0';
    const std::size_t begin = end_of_word_tag(at_, "raw", sign);
    if (begin == 0 || sign == '+') return false;
    move_to(begin);
    line_starts_ = false;
    if (sign == '-') skip_space();
    for (std::size_t tag = text_.find("{%", at_); tag != std::string::npos; tag = text_.find("{%", tag + 1)) {
      const std::size_t end = end_of_word_tag(tag, "endraw", sign);
      if (end == 0) continue;
      add_data_before(tag, 2, false);
      move_to(end);
      after_end(sign);
      return true;
    }
    fail_syntax("Missing end of raw directive", line_);
  }

  void read_tag(bool is_variable) {
    add(is_variable ? Type::variable_begin : Type::block_begin);
    open_.clear();
    while (true) {
      if (open_.empty() && read_tag_end(is_variable)) return;
      if (at_ >= text_.size()) return;  // the parser says what is missing
      if (is_space(code_point_at(text_, at_).value)) {
        skip_space();
      } else {
        read_token();
      }
    }
  }

  bool read_tag_end(bool is_variable) {
    const std::string_view end = is_variable ? "}}" : "%}";
    const bool signed_end = (starts("-") || (!is_variable && starts("+"))) && rest().substr(1, 2) == end;
    if (!signed_end && !starts(end)) return false;
    const char sign = signed_end ? text_[at_] : '\0';
    add(is_variable ? Type::variable_end : Type::block_end);
    move_to(at_ + (signed_end ? 3 : 2));
    if (!is_variable || sign == '-') after_end(sign);
    return true;
  }

  static bool is_name_start(char c) {
    return c == '_' || ((c | 32) >= 'a' && (c | 32) <= 'z') || static_cast<unsigned char>(c) >= 0x80;
  }

  void read_token() {
    const char c = text_[at_];
    if (c >= '0' && c <= '9') {
      tokens_.push_back(number_at(text_, at_, line_));
    } else if (is_name_start(c)) {
      const std::size_t begin = at_;
      while (at_ < text_.size() && (is_name_start(text_[at_]) || (text_[at_] >= '0' && text_[at_] <= '9')))
        ++at_;
      add(Type::name, text_.substr(begin, at_ - begin));
    } else if (c == '\'' || c == '"') {
      std::size_t end = at_;
      tokens_.push_back(string_at(text_, end, line_));
      move_to(end);
    } else {
      read_symbol();
    }
  }

  void read_symbol() {
    static constexpr std::array<std::string_view, 6> kPairs = {"//", "**", "==", "!=", "<=", ">="};
    static constexpr std::string_view kSingle = "+-/*%~[](){}<>=.:|,;";
    for (const std::string_view pair : kPairs) {
      if (!starts(pair)) continue;
      at_ += 2;
      return add(Type::symbol, std::string(pair));
    }
    const char c = text_[at_];
    if (kSingle.find(c) == std::string_view::npos) fail_syntax(fmt::format("unexpected char '{}'", c), line_);
    balance(c);
    ++at_;
    add(Type::symbol, std::string(1, c));
  }

  void balance(char c) {
    if (c == '(' || c == '[' || c == '{') open_ += c == '(' ? ')' : (c == '[' ? ']' : '}');
    if (c != ')' && c != ']' && c != '}') return;
    if (open_.empty()) fail_syntax(fmt::format("unexpected '{}'", c), line_);
    if (open_.back() != c) fail_syntax(fmt::format("unexpected '{}', expected '{}'", c, open_.back()), line_);
    open_.pop_back();
  }

  std::string text_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool line_starts_ = true;
  std::string open_;  // the ends of brackets that are open
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokens_of(std::string_view text) {
  if (!is_utf8(text)) fail_syntax("the template is no UTF-8", 0);
  return Lexer(with_plain_line_ends(text)).tokens();
}

void fail_syntax(const std::string& message, int line) {
  throw TemplateError(TemplateError::Kind::syntax, message, line);
}

}  // namespace switchyard::jinja

#include <algorithm>
#include <charconv>
#include <cmath>

#include "chat/jinja/lexer.h"

namespace switchyard::jinja {

namespace {

bool is_digit(char c, int base) {
  if (base == 16) return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'f');
  return c >= '0' && c < '0' + base;
}

int digit_value(char c) {
  return c <= '9' ? c - '0' : (c | 32) - 'a' + 10;
}

char char_at(std::string_view text, std::size_t at) {
  return at < text.size() ? text[at] : '\0';
}

// Digits with single underscores between them.
std::size_t digits_end(std::string_view text, std::size_t at, int base) {
  while (is_digit(char_at(text, at), base) ||
         (char_at(text, at) == '_' && is_digit(char_at(text, at + 1), base)))
    ++at;
  return at;
}

Token whole_number(std::string_view digits, int base, int line) {
  Token token{Token::Type::integer, {}, 0, 0, line};
  for (const char c : digits) {
    if (c == '_') continue;
    token.integer = token.integer * base + digit_value(c);
    if (token.integer > UINT64_MAX) fail_syntax("an integer has more than 64 bits", line);
  }
  return token;
}

// Returns the end of a number with its fraction and its exponent.
std::size_t real_end(std::string_view text, std::size_t end) {
  if (char_at(text, end) == '.' && is_digit(char_at(text, end + 1), 10)) end = digits_end(text, end + 1, 10);
  if ((char_at(text, end) | 32) == 'e') {
    std::size_t digits = end + 1;
    if (char_at(text, digits) == '+' || char_at(text, digits) == '-') ++digits;
    if (is_digit(char_at(text, digits), 10)) end = digits_end(text, digits, 10);
  }
  return end;
}

Token real_number(std::string_view text, int line) {
  std::string plain(text);
  plain.erase(std::remove(plain.begin(), plain.end(), '_'), plain.end());
  Token token{Token::Type::real, {}, 0, 0, line};
  const auto result = std::from_chars(plain.data(), plain.data() + plain.size(), token.real);
  if (result.ec == std::errc::result_out_of_range) {
    token.real =
        plain.find("e-") == std::string::npos && plain.find("E-") == std::string::npos ? HUGE_VAL : 0.0;
  }
  return token;
}

// The number of `digits` digits in base 16 or 8 after a backslash.
std::int32_t escaped_number(std::string_view text, std::size_t& at, std::size_t digits, int base, int line) {
  std::int64_t value = 0;
  for (std::size_t i = 0; i < digits; ++i, ++at) {
    if (!is_digit(char_at(text, at), base)) fail_syntax("a string has a truncated escape", line);
    value = value * base + digit_value(text[at]);
  }
  if (value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) fail_syntax("illegal Unicode character", line);
  return static_cast<std::int32_t>(value);
}

bool append_simple_escape(std::string& out, char c) {
  constexpr std::string_view kNames = "\n\\'\"abfnrtv", kValues = "\n\\'\"\a\b\f\n\r\t\v";
  const std::size_t found = kNames.find(c);
  if (found == std::string_view::npos) return false;
  if (c != '\n') out += kValues[found];  // a line end after a backslash is none
  return true;
}

void append_escape(std::string& out, std::string_view text, std::size_t& at, int line) {
  const char c = char_at(text, at);
  if (append_simple_escape(out, c)) {
    ++at;
  } else if (c == 'x' || c == 'u' || c == 'U') {
    ++at;
    append_code_point(out, escaped_number(text, at, c == 'x' ? 2 : (c == 'u' ? 4 : 8), 16, line));
  } else if (is_digit(c, 8)) {
    std::size_t digits = 1;
    while (digits < 3 && is_digit(char_at(text, at + digits), 8)) ++digits;
    append_code_point(out, escaped_number(text, at, digits, 8, line));
  } else if (c == 'N') {
    fail_syntax("names of characters in strings are not supported", line);
  } else {
    out += '\\';
  }
}

}  // namespace

Token number_at(std::string_view text, std::size_t& at, int line) {
  const char kind = static_cast<char>(char_at(text, at + 1) | 32);
  const int base = text[at] != '0' ? 10 : (kind == 'x' ? 16 : (kind == 'o' ? 8 : (kind == 'b' ? 2 : 10)));
  const std::size_t begin = at;
  if (base != 10) {
    const std::size_t digits = at + 2 + (char_at(text, at + 2) == '_' ? 1 : 0);
    if (is_digit(char_at(text, digits), base)) {
      at = digits_end(text, digits, base);
      return whole_number(text.substr(digits, at - digits), base, line);
    }
  }
  at = digits_end(text, at, 10);
  const bool after_dot = begin > 0 && text[begin - 1] == '.';  // the second number of `a.1.5` is no fraction
  const std::size_t end = after_dot ? at : real_end(text, at);
  if (end != at) {
    at = end;
    return real_number(text.substr(begin, end - begin), line);
  }
  if (text[begin] == '0') {  // no other digits may follow a leading zero
    at = begin + 1;
    while (char_at(text, at) == '0' || (char_at(text, at) == '_' && char_at(text, at + 1) == '0')) ++at;
  }
  return whole_number(text.substr(begin, at - begin), 10, line);
}

Token string_at(std::string_view text, std::size_t& at, int line) {
  const char quote = text[at++];
  Token token{Token::Type::string, {}, 0, 0, line};
  while (true) {
    if (at >= text.size()) fail_syntax("a string has no end", line);
    const char c = text[at++];
    if (c == quote) return token;
    if (c != '\\') {
      token.text += c;
    } else if (at >= text.size()) {
      fail_syntax("a string has no end", line);
    } else {
      append_escape(token.text, text, at, line);
    }
  }
}

}  // namespace switchyard::jinja

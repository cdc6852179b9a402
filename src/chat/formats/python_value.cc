#include "chat/formats/python_value.h"

#include <fmt/format.h>

#include <charconv>

#include "chat/formats/answer.h"
#include "chat/formats/tool_types.h"

namespace switchyard::chat::formats {
namespace {

void append_code_point(std::string& json, std::uint32_t code) {
  if (code > 0x10ffff) code = 0xfffd;
  if (code < 0x10000)
    json += fmt::format("\\u{:04x}", code);
  else
    json += fmt::format("\\u{:04x}\\u{:04x}", 0xd800 + ((code - 0x10000) >> 10), 0xdc00 + (code & 0x3ff));
}

int digit_of(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// Returns a number of Python as JSON: 1_000, .5, 5., +1, 0xff. Empty where the word is none.
std::string json_of_number(std::string_view word) {
  std::string number, digits;
  if (word.starts_with('-')) number = "-";
  if (word.starts_with('-') || word.starts_with('+')) word.remove_prefix(1);
  for (char c : word)
    if (c != '_') digits += c;
  for (const auto& [prefix, base] : {std::pair{"0x", 16}, {"0o", 8}, {"0b", 2}}) {
    if (!digits.starts_with(prefix)) continue;
    std::uint64_t value = 0;
    const char* end = digits.data() + digits.size();
    const auto read = std::from_chars(digits.data() + 2, end, value, base);
    return read.ec == std::errc() && read.ptr == end ? number + fmt::format("{}", value) : std::string();
  }
  if (digits.starts_with('.')) digits.insert(0, "0");
  if (const std::size_t point = digits.find('.');
      point != std::string::npos &&
      (point + 1 == digits.size() || digit_of(digits[point + 1]) < 0 || digits[point + 1] > '9'))
    digits.insert(point + 1, "0");
  number += digits;
  const bool is_number = !digits.empty() && digits[0] >= '0' && digits[0] <= '9' && Json::accept(number);
  return is_number ? number : std::string();
}

std::string json_of_word(const std::string& word) {
  if (word == "True" || word == "true") return "true";
  if (word == "False" || word == "false") return "false";
  if (word == "None" || word == "null") return "null";
  const std::string number = json_of_number(word);
  return number.empty() ? json_text(word) : number;
}

bool is_word_character(char c) {
  return is_name_character(c) || c == '+' || static_cast<unsigned char>(c) >= 0x80;
}

}  // namespace

PythonValue::Result PythonValue::take(char c, std::string& json) {
  switch (at_) {
    case At::opening_quotes:
    case At::in_text:
      return take_text_byte(c, json);
    case At::in_escape:
      return take_escape(c, json);
    case At::in_code:
    case At::in_octal:
      return take_code(c, json);
    case At::in_word:
      if (is_word_character(c)) {
        word_ += c;
        return Result::reading;
      }
      end_word(json);
      break;
    case At::value:
    case At::key:
    case At::colon:
    case At::behind:
      break;
  }
  if (is_space(c)) return Result::reading;
  if (at_ == At::behind) return take_behind(c, json);
  if (at_ == At::colon) {
    at_ = At::value;
    is_key_ = false;
    if (c == ':') json += ": ";
    return c == ':' ? Result::reading : Result::broken;
  }
  return begin_value(c, json);
}

void PythonValue::begin_element(std::string& json) {
  const bool is_value_of_key = !open_.empty() && open_.back().bracket == '{' && at_ == At::value;
  if (open_.empty() || is_value_of_key) return;
  if (open_.back().any) json += ", ";
  open_.back().any = true;
}

PythonValue::Result PythonValue::begin_value(char c, std::string& json) {
  is_key_ = at_ == At::key;
  const bool closes = !open_.empty() && (c == ']' || c == ')' || c == '}');
  if (closes && (is_key_ || open_.back().bracket != '{')) return take_behind(c, json);
  const bool opens = c == '[' || c == '(' || c == '{';
  if (opens && is_key_) return Result::broken;
  if (!opens && c != '"' && c != '\'' && !is_word_character(c)) return Result::broken;
  begin_element(json);
  if (opens) {
    open_.push_back({c});
    json += c == '{' ? '{' : '[';
    at_ = c == '{' ? At::key : At::value;
  } else if (c == '"' || c == '\'') {
    json += '"';
    quote_ = c;
    quotes_ = 1;
    triple_ = false;
    at_ = At::opening_quotes;
  } else {
    word_ = c;
    at_ = At::in_word;
  }
  return Result::reading;
}

// Behind a value, or in place of one behind a comma that nothing follows.
PythonValue::Result PythonValue::take_behind(char c, std::string& json) {
  if (open_.empty()) return c == ',' || c == ')' ? Result::whole : Result::broken;
  const char bracket = open_.back().bracket;
  if (c == ',') {
    at_ = bracket == '{' ? At::key : At::value;
    return Result::reading;
  }
  const char end = bracket == '(' ? ')' : bracket == '[' ? ']' : '}';
  if (c != end) return Result::broken;
  open_.pop_back();
  json += bracket == '{' ? '}' : ']';
  at_ = At::behind;
  return Result::reading;
}

void PythonValue::end_word(std::string& json) {
  json += is_key_ ? json_text(word_) : json_of_word(word_);
  at_ = is_key_ ? At::colon : At::behind;
}

PythonValue::Result PythonValue::end_text(std::string& json) {
  json += '"';
  quotes_ = 0;
  at_ = is_key_ ? At::colon : At::behind;
  return Result::reading;
}

void PythonValue::flush_quotes(std::string& json) {
  append_escaped(json, std::string(static_cast<std::size_t>(quotes_), quote_));
  quotes_ = 0;
}

PythonValue::Result PythonValue::take_text_byte(char c, std::string& json) {
  if (at_ == At::opening_quotes) {
    if (c == quote_) {
      triple_ = ++quotes_ == 3;
      if (triple_) {
        quotes_ = 0;
        at_ = At::in_text;
      }
      return Result::reading;
    }
    const bool empty = quotes_ == 2;
    quotes_ = 0;
    at_ = At::in_text;
    if (empty) {
      end_text(json);
      return take(c, json);
    }
  }
  if (c == quote_) {
    if (!triple_ || ++quotes_ == 3) return end_text(json);
    return Result::reading;
  }
  if (triple_) flush_quotes(json);
  if (c == '\\')
    at_ = At::in_escape;
  else
    append_escaped(json, std::string_view(&c, 1));
  return Result::reading;
}

PythonValue::Result PythonValue::take_escape(char c, std::string& json) {
  at_ = At::in_text;
  code_ = 0;
  constexpr std::string_view kNames = "ntrbfva\\'\"\n", kValues = "\n\t\r\b\f\v\a\\'\"";
  if (const std::size_t which = kNames.find(c); which != std::string_view::npos) {
    if (which < kValues.size()) append_escaped(json, kValues.substr(which, 1));
  } else if (c == 'x' || c == 'u' || c == 'U') {
    at_ = At::in_code;
    digits_left_ = c == 'x' ? 2 : c == 'u' ? 4 : 8;
  } else if (c >= '0' && c <= '7') {
    at_ = At::in_octal;
    digits_left_ = 2;
    code_ = static_cast<std::uint32_t>(c - '0');
  } else {
    append_escaped(json, "\\");
    append_escaped(json, std::string_view(&c, 1));
  }
  return Result::reading;
}

PythonValue::Result PythonValue::take_code(char c, std::string& json) {
  const std::uint32_t base = at_ == At::in_octal ? 8 : 16;
  const int digit = digit_of(c);
  const bool fits = digit >= 0 && static_cast<std::uint32_t>(digit) < base;
  if (fits) {
    code_ = code_ * base + static_cast<std::uint32_t>(digit);
    --digits_left_;
  }
  if (fits && digits_left_ > 0) return Result::reading;
  append_code_point(json, code_);
  at_ = At::in_text;
  return fits ? Result::reading : take_text_byte(c, json);
}

void PythonValue::close(std::string& json) {
  if (at_ == At::in_word) end_word(json);
  const bool in_text = at_ == At::opening_quotes || at_ == At::in_text || at_ == At::in_escape ||
                       at_ == At::in_code || at_ == At::in_octal;
  if (in_text) end_text(json);
  if (at_ == At::colon) {
    json += ": ";
    at_ = At::value;
  }
  const bool lacks_value = at_ == At::value && (open_.empty() || open_.back().bracket == '{');
  if (lacks_value) json += "null";
  for (; !open_.empty(); open_.pop_back()) json += open_.back().bracket == '{' ? '}' : ']';
  at_ = At::behind;
}

}  // namespace switchyard::chat::formats

// text % values.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "chat/jinja/builtins.h"
#include "chat/jinja/markup.h"

namespace switchyard::jinja {

namespace {

class PercentFormatter {
 public:
  PercentFormatter(const Text& pattern, const Value& values) : pattern_(pattern), values_(values) {}

  Text format() {
    const std::string& text = pattern_.bytes;
    while (at_ < text.size()) {
      const std::size_t next = std::min(text.find('%', at_), text.size());
      out_.append(pattern_, at_, next);
      at_ = next + 1;
      if (next < text.size()) field();
    }
    const Tuple* tuple = values_.tuple();
    const bool all_used =
        tuple != nullptr ? used_ >= tuple->items.size() : used_ > 0 || values_.mapping() != nullptr;
    if (!all_used) fail_other("not all arguments converted during string formatting");
    return as_markup(std::move(out_), pattern_.is_markup);
  }

 private:
  char current() const { return at_ < pattern_.size() ? pattern_.bytes[at_] : '\0'; }

  Value next_value() {
    const Tuple* tuple = values_.tuple();
    if (tuple == nullptr ? used_ > 0 : used_ >= tuple->items.size()) {
      fail_other("not enough arguments for format string");
    }
    ++used_;
    return tuple == nullptr ? values_ : tuple->items[used_ - 1];
  }

  Value value() {
    if (!key_) return next_value();
    const Value* found = values_.mapping()->find(*key_);
    if (found == nullptr) fail_other(fmt::format("KeyError: '{}'", *key_));
    return *found;
  }

  void read_key() {
    key_.reset();
    if (current() != '(') return;
    const std::size_t end = pattern_.bytes.find(')', at_);
    if (end == std::string::npos) fail_other("incomplete format key");
    if (values_.mapping() == nullptr) fail_other("format requires a mapping");
    key_ = pattern_.bytes.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
  }

  // Digits, or `*`, which takes a value.
  std::string number() {
    if (current() == '*') {
      ++at_;
      const Value value = next_value();
      if (!value.integer()) fail_other("* wants int");
      Budget::check_bytes(to_size(*value.integer()));
      if (*value.integer() < 0) flags_ += '-';
      return integer_text(*value.integer() < 0 ? -*value.integer() : *value.integer());
    }
    std::string out;
    for (; current() >= '0' && current() <= '9'; ++at_) out += current();
    return out;
  }

  void field() {
    read_key();
    flags_.clear();
    for (; current() != '\0' && std::string_view("-+ #0").find(current()) != std::string_view::npos; ++at_)
      flags_ += current();
    const std::string width = number();
    std::optional<std::string> precision;
    if (current() == '.') {
      ++at_;
      precision = number();
      if (precision->empty()) precision = "0";
    }
    while (current() == 'h' || current() == 'l' || current() == 'L') ++at_;
    if (at_ >= pattern_.size()) fail_other("incomplete format");
    const char kind = pattern_.bytes[at_++];
    if (kind == '%') return out_.append("%");
    convert(kind, width, precision);
  }

  bool has_flag(char flag) const { return flags_.find(flag) != std::string::npos; }

  std::string specification(bool is_number, const std::string& width) const {
    std::string out;
    if (has_flag('-')) {
      out += '<';
    } else if (!is_number || !has_flag('0')) {
      out += '>';
    }
    if (is_number) {
      if (has_flag('+')) {
        out += '+';
      } else if (has_flag(' ')) {
        out += ' ';
      }
      if (has_flag('#')) out += '#';
      if (has_flag('0') && !has_flag('-')) out += '0';
    }
    return out + width;
  }

  void convert(char kind, const std::string& width, const std::optional<std::string>& precision) {
    if (std::string_view("srac").find(kind) != std::string_view::npos)
      return convert_text(kind, width, precision);
    const Value given = value();
    if (!given.number())
      fail_type(fmt::format("%{} format: a real number is required, not {}", kind, type_name(given)), given);
    if (std::string_view("diuxXo").find(kind) != std::string_view::npos) {
      convert_integer(kind, width, precision, given);
    } else if (std::string_view("eEfFgG").find(kind) != std::string_view::npos) {
      out_.append(format_value(Value(*given.number()),
                               specification(true, width) + "." + precision.value_or("6") + kind));
    } else {
      fail_other(fmt::format("unsupported format character '{}'", kind));
    }
  }

  void convert_integer(char kind, const std::string& width, const std::optional<std::string>& precision,
                       const Value& given) {
    const bool as_decimal = kind == 'd' || kind == 'i' || kind == 'u';
    if (!as_decimal && !given.integer())
      fail_other(fmt::format("%{} format: an integer is required, not float", kind));
    Integer whole_part = 0;
    if (given.integer()) {
      whole_part = *given.integer();
    } else {
      if (!std::isfinite(*given.real()) || std::abs(*given.real()) > 1e19)
        fail_other("an integer has more than 64 bits");
      whole_part = whole(static_cast<Integer>(*given.real()));
    }
    const std::string letter(1, as_decimal ? 'd' : kind);
    if (!precision) return out_.append(format_value(Value(whole_part), specification(true, width) + letter));
    std::string digits = format_value(Value(whole_part < 0 ? -whole_part : whole_part), letter);
    const std::size_t wanted = to_size(std::stoll(precision->substr(0, 12)));
    Budget::check_bytes(wanted);
    if (digits.size() < wanted) digits.insert(0, wanted - digits.size(), '0');
    if (whole_part < 0) digits.insert(0, 1, '-');
    out_.append(format_value(Text(digits), specification(false, width)));
  }

  void convert_text(char kind, const std::string& width, const std::optional<std::string>& precision) {
    const Value given = value();
    Text text;
    if (kind == 's') {
      text = pattern_.is_markup ? escaped(given) : str(given);
    } else if (kind == 'c') {
      if (given.is_text() && count_code_points(given.text()->bytes) == 1) {
        text = *given.text();
      } else if (given.integer()) {
        text = Text(format_value(given, "c"));
      } else {
        fail_other("%c requires int or char");
      }
    } else {
      append_repr(text, given);
      if (pattern_.is_markup) text = escaped_text(text);
    }
    if (width.empty() && !precision) return out_.append(text);
    const std::string spec = specification(false, width) + (precision ? "." + *precision : "");
    out_.append(format_value(Text(text.bytes), spec), text.any_foreign());
  }

  const Text& pattern_;
  const Value& values_;
  std::size_t at_ = 0, used_ = 0;
  std::string flags_;
  std::optional<std::string> key_;
  Text out_;
};

}  // namespace

Text percent_formatted(const Text& pattern, const Value& values) {
  return PercentFormatter(pattern, values).format();
}

}  // namespace switchyard::jinja

// Methods of Python's str.
#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>

#include "chat/jinja/interpreter.h"
#include "chat/jinja/markup.h"
#include "chat/jinja/text_search.h"

namespace switchyard::jinja {

namespace {
namespace text_methods {

const Text& own(const Value& self) {
  return *self.text();
}

Value strip_with(const char* name, const Value& self, const Arguments& arguments, Sides sides) {
  const Parameters parameters(name, arguments, {"chars"});
  return strip_text(own(self), parameters[0], sides);
}

Value strip(Interpreter&, const Value& self, const Arguments& a) {
  return strip_with("strip", self, a, Sides::both);
}
Value lstrip(Interpreter&, const Value& self, const Arguments& a) {
  return strip_with("lstrip", self, a, Sides::left);
}
Value rstrip(Interpreter&, const Value& self, const Arguments& a) {
  return strip_with("rstrip", self, a, Sides::right);
}

// Changes all bytes by `change`; the result is foreign where any byte was.
Value changed(const char* name, const Value& self, const Arguments& arguments,
              std::string (*change)(std::string_view)) {
  const Parameters none(name, arguments, {});
  Budget::count_text(own(self).size());
  return Text(change(own(self).bytes), own(self).any_foreign());
}

Value to_upper(Interpreter&, const Value& self, const Arguments& a) {
  return changed("upper", self, a, upper);
}
Value to_lower(Interpreter&, const Value& self, const Arguments& a) {
  return changed("lower", self, a, lower);
}
Value to_title(Interpreter&, const Value& self, const Arguments& a) {
  return changed("title", self, a, title);
}
Value capitalize(Interpreter&, const Value& self, const Arguments& a) {
  return changed("capitalize", self, a, capitalized);
}

bool matches_end(std::string_view text, std::string_view other, bool at_start) {
  if (other.size() > text.size()) return false;
  return at_start ? text.substr(0, other.size()) == other : text.substr(text.size() - other.size()) == other;
}

Value has_end(const char* name, const Value& self, const Arguments& arguments, bool at_start) {
  const Parameters parameters(name, arguments, {"prefix", "start", "end"}, 1);
  const TextRange range = index_range(own(self), parameters[1], parameters[2]);
  if (range.begin > range.end) return false;
  const std::string_view text =
      std::string_view(own(self).bytes).substr(range.begin, range.end - range.begin);
  const auto matches = [&](const Value& other) {
    if (!other.is_text()) {
      fail_type(fmt::format("{} first arg must be str or a tuple of str, not {}", name, type_name(other)),
                other);
    }
    return matches_end(text, other.text()->bytes, at_start);
  };
  if (const Tuple* tuple = parameters[0].tuple())
    return std::any_of(tuple->items.begin(), tuple->items.end(), matches);
  return matches(parameters[0]);
}

Value startswith(Interpreter&, const Value& self, const Arguments& a) {
  return has_end("startswith", self, a, true);
}
Value endswith(Interpreter&, const Value& self, const Arguments& a) {
  return has_end("endswith", self, a, false);
}

Value remove_end(const char* name, const Value& self, const Arguments& arguments, bool at_start) {
  const Parameters parameters(name, arguments, {"text"}, 1);
  const std::string other = parameters.text(0, "").bytes;
  if (!matches_end(own(self).bytes, other, at_start)) return self;
  const std::size_t size = own(self).size();
  return at_start ? own(self).part(other.size(), size) : own(self).part(0, size - other.size());
}

Value removeprefix(Interpreter&, const Value& self, const Arguments& a) {
  return remove_end("removeprefix", self, a, true);
}
Value removesuffix(Interpreter&, const Value& self, const Arguments& a) {
  return remove_end("removesuffix", self, a, false);
}

Value replace(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters("replace", arguments, {"old", "new", "count"}, 2);
  return replaced(own(self), parameters.text(0, ""), parameters.text(1, ""), parameters.integer(2, -1));
}

Value join(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters("join", arguments, {"iterable"}, 1);
  Text out;
  bool first = true;
  const auto cursor = iterate(parameters[0]);
  for (Value each; cursor->next(each); first = false) {
    if (!each.is_text())
      fail_other(fmt::format("sequence item: expected str instance, {} found", type_name(each)));
    if (!first) out.append(own(self));
    append_str(out, each);
  }
  return out;
}

std::size_t found_at(const char* name, const Value& self, const Arguments& arguments, bool last) {
  const Parameters parameters(name, arguments, {"sub", "start", "end"}, 1);
  const std::string part = parameters.text(0, "").bytes;
  const TextRange range = index_range(own(self), parameters[1], parameters[2]);
  if (range.begin > range.end) return std::string::npos;
  Budget::count_text(own(self).size());
  const std::string_view text = std::string_view(own(self).bytes).substr(0, range.end);
  const std::size_t at = last ? text.rfind(part) : text.find(part, range.begin);
  if (at == std::string_view::npos || at < range.begin) return std::string::npos;
  return count_code_points(text.substr(0, at));
}

Value position_or(std::size_t at, bool fails) {
  if (at != std::string::npos) return at;
  if (fails) fail_other("substring not found");
  return -1;
}

Value find(Interpreter&, const Value& self, const Arguments& a) {
  return position_or(found_at("find", self, a, false), false);
}
Value rfind(Interpreter&, const Value& self, const Arguments& a) {
  return position_or(found_at("rfind", self, a, true), false);
}
Value index(Interpreter&, const Value& self, const Arguments& a) {
  return position_or(found_at("index", self, a, false), true);
}
Value rindex(Interpreter&, const Value& self, const Arguments& a) {
  return position_or(found_at("rindex", self, a, true), true);
}

Value count(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters("count", arguments, {"sub", "start", "end"}, 1);
  const TextRange range = index_range(own(self), parameters[1], parameters[2]);
  if (range.begin > range.end) return 0;
  return count_of(std::string_view(own(self).bytes).substr(range.begin, range.end - range.begin),
                  parameters.text(0, "").bytes);
}

Value format(Interpreter& interpreter, const Value& self, const Arguments& arguments) {
  return formatted(interpreter, own(self), arguments);
}

bool is_letter(std::int32_t point) {
  const auto kind = utf8proc_category(point);
  return kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LO;
}
bool is_decimal(std::int32_t point) {
  return utf8proc_category(point) == UTF8PROC_CATEGORY_ND;
}
bool is_digit(std::int32_t point) {
  return is_decimal(point) || point == 0xB2 || point == 0xB3 || point == 0xB9 ||
         (point >= 0x2070 && point <= 0x2089);
}
bool is_numeric(std::int32_t point) {
  const auto kind = utf8proc_category(point);
  return kind == UTF8PROC_CATEGORY_ND || kind == UTF8PROC_CATEGORY_NL || kind == UTF8PROC_CATEGORY_NO;
}
bool is_alphanumeric(std::int32_t point) {
  return is_letter(point) || is_numeric(point);
}
bool is_ascii(std::int32_t point) {
  return point < 128;
}

Value all_are(const Value& self, const Arguments& arguments, bool (*is)(std::int32_t), bool empty = false) {
  const Parameters none("is...", arguments, {});
  const auto points = code_points(own(self).bytes);
  return points.empty() ? empty : std::all_of(points.begin(), points.end(), is);
}

Value isalpha(Interpreter&, const Value& self, const Arguments& a) {
  return all_are(self, a, is_letter);
}
Value isalnum(Interpreter&, const Value& self, const Arguments& a) {
  return all_are(self, a, is_alphanumeric);
}
Value isdigit(Interpreter&, const Value& self, const Arguments& a) {
  return all_are(self, a, is_digit);
}
Value isdecimal(Interpreter&, const Value& self, const Arguments& a) {
  return all_are(self, a, is_decimal);
}
Value isnumeric(Interpreter&, const Value& self, const Arguments& a) {
  return all_are(self, a, is_numeric);
}
Value isspace(Interpreter&, const Value& self, const Arguments& a) {
  return all_are(self, a, is_space);
}
Value isascii(Interpreter&, const Value& self, const Arguments& a) {
  return all_are(self, a, is_ascii, true);
}

Value isupper(Interpreter&, const Value& self, const Arguments& a) {
  const Parameters none("isupper", a, {});
  return own(self).bytes == upper(own(self).bytes) && own(self).bytes != lower(own(self).bytes);
}
Value islower(Interpreter&, const Value& self, const Arguments& a) {
  const Parameters none("islower", a, {});
  return own(self).bytes == lower(own(self).bytes) && own(self).bytes != upper(own(self).bytes);
}
Value unescape(Interpreter&, const Value& self, const Arguments& a) {
  return changed("unescape", self, a, unescaped_html);
}
Value striptags(Interpreter&, const Value& self, const Arguments& a) {
  return changed("striptags", self, a, without_tags);
}

constexpr MethodEntry kMarkupMethods[] = {{"unescape", unescape}, {"striptags", striptags}};

constexpr MethodEntry kMethods[] = {
    {"strip", strip},
    {"lstrip", lstrip},
    {"rstrip", rstrip},
    {"upper", to_upper},
    {"lower", to_lower},
    {"title", to_title},
    {"capitalize", capitalize},
    {"startswith", startswith},
    {"endswith", endswith},
    {"removeprefix", removeprefix},
    {"removesuffix", removesuffix},
    {"replace", replace},
    {"join", join},
    {"find", find},
    {"rfind", rfind},
    {"index", index},
    {"rindex", rindex},
    {"count", count},
    {"format", format},
    {"isalpha", isalpha},
    {"isalnum", isalnum},
    {"isdigit", isdigit},
    {"isdecimal", isdecimal},
    {"isnumeric", isnumeric},
    {"isspace", isspace},
    {"isascii", isascii},
    {"isupper", isupper},
    {"islower", islower},
};

}  // namespace text_methods
}  // namespace

const MethodEntry* find_text_method(std::string_view name) {
  if (const MethodEntry* found = find_entry(text_methods::kMethods, name)) return found;
  return find_split_method(name);
}

const MethodEntry* find_markup_method(std::string_view name) {
  return find_entry(text_methods::kMarkupMethods, name);
}

}  // namespace switchyard::jinja

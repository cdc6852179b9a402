// Methods of str that cut texts into parts, or fill them up to a width.
#include <fmt/format.h>

#include <algorithm>

#include "chat/jinja/interpreter.h"
#include "chat/jinja/text_search.h"

namespace switchyard::jinja {

namespace {
namespace split_methods {

const Text& own(const Value& self) {
  return *self.text();
}

Text separator_of(const Value& value) {
  if (!value.is_text()) fail_type(fmt::format("must be str or None, not {}", type_name(value)), value);
  if (value.text()->bytes.empty()) fail_other("empty separator");
  return *value.text();
}

std::vector<Value> parts_from_left(const Text& text, const std::string& separator, Integer most) {
  std::vector<Value> out;
  std::size_t at = 0;
  for (; most != 0; --most) {
    const std::size_t found = text.bytes.find(separator, at);
    if (found == std::string::npos) break;
    out.emplace_back(text.part(at, found));
    at = found + separator.size();
  }
  out.emplace_back(text.part(at, text.size()));
  return out;
}

std::vector<Value> parts_from_right(const Text& text, const std::string& separator, Integer most) {
  std::vector<Value> out;
  std::size_t end = text.size();
  for (; most != 0 && end >= separator.size(); --most) {
    const std::size_t found = text.bytes.rfind(separator, end - separator.size());
    if (found == std::string::npos) break;
    out.emplace_back(text.part(found + separator.size(), end));
    end = found;
  }
  out.emplace_back(text.part(0, end));
  std::reverse(out.begin(), out.end());
  return out;
}

// Words, of which at most `most` are cut off.
std::vector<Value> words_from_left(const Text& text, Integer most) {
  std::vector<Value> out;
  Text rest = strip_text(text, Value(), Sides::left);
  for (; most != 0 && rest.size() > 0; --most) {
    std::size_t at = 0;
    while (at < rest.size() && !is_space(code_point_at(rest.bytes, at).value))
      at = code_point_at(rest.bytes, at).next;
    out.emplace_back(rest.part(0, at));
    rest = strip_text(rest.part(at, rest.size()), Value(), Sides::left);
  }
  if (rest.size() > 0) out.emplace_back(std::move(rest));
  return out;
}

std::vector<Value> words_from_right(const Text& text, Integer most) {
  std::vector<Value> out;
  Text rest = strip_text(text, Value(), Sides::right);
  for (; most != 0 && rest.size() > 0; --most) {
    std::size_t begin = 0;
    for (std::size_t at = 0; at < rest.size();) {
      const CodePoint point = code_point_at(rest.bytes, at);
      at = point.next;
      if (is_space(point.value)) begin = at;
    }
    out.emplace_back(rest.part(begin, rest.size()));
    rest = strip_text(rest.part(0, begin), Value(), Sides::right);
  }
  if (rest.size() > 0) out.emplace_back(std::move(rest));
  std::reverse(out.begin(), out.end());
  return out;
}

Value split(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters("split", arguments, {"sep", "maxsplit"});
  Budget::count_text(own(self).size());
  const Integer most = parameters.integer(1, -1);
  if (parameters.has_value(0))
    return make_list(parts_from_left(own(self), separator_of(parameters[0]).bytes, most));
  return make_list(most < 0 ? words_of(own(self)) : words_from_left(own(self), most));
}

Value rsplit(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters("rsplit", arguments, {"sep", "maxsplit"});
  Budget::count_text(own(self).size());
  const Integer most = parameters.integer(1, -1);
  if (parameters.has_value(0))
    return make_list(parts_from_right(own(self), separator_of(parameters[0]).bytes, most));
  return make_list(most < 0 ? words_of(own(self)) : words_from_right(own(self), most));
}

Value splitlines(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters("splitlines", arguments, {"keepends"});
  return make_list(lines_of(own(self), parameters.flag(0, false)));
}

Value parted(const Value& self, const Arguments& arguments, bool last) {
  const Parameters parameters("partition", arguments, {"sep"}, 1);
  const Text separator = separator_of(parameters[0]);
  const Text& text = own(self);
  Budget::count_text(text.size());
  const std::size_t found = last ? text.bytes.rfind(separator.bytes) : text.bytes.find(separator.bytes);
  if (found == std::string::npos) {
    return last ? make_tuple({Value(""), Value(""), self}) : make_tuple({self, Value(""), Value("")});
  }
  const std::size_t end = found + separator.size();
  return make_tuple(
      {Value(text.part(0, found)), Value(text.part(found, end)), Value(text.part(end, text.size()))});
}

Value partition(Interpreter&, const Value& self, const Arguments& a) {
  return parted(self, a, false);
}
Value rpartition(Interpreter&, const Value& self, const Arguments& a) {
  return parted(self, a, true);
}

Text filled(const Text& text, const Text& fill, std::size_t left, std::size_t right) {
  if (count_code_points(fill.bytes) != 1) fail_other("The fill character must be exactly one character long");
  Budget::check_bytes(text.size() + (left + right) * fill.size());
  Text out;
  for (std::size_t i = 0; i < left; ++i) out.append(fill);
  out.append(text);
  for (std::size_t i = 0; i < right; ++i) out.append(fill);
  Budget::count_text(out.size());
  return out;
}

enum class Place { left, right, center };

Value placed(const char* name, const Value& self, const Arguments& arguments, Place place) {
  const Parameters parameters(name, arguments, {"width", "fillchar"}, 1);
  const std::size_t width = to_size(parameters.integer(0, 0)), size = count_code_points(own(self).bytes);
  const std::size_t room = width > size ? width - size : 0;
  std::size_t left = place == Place::right ? room : 0;
  if (place == Place::center) left = room / 2 + (room & width & 1);
  return filled(own(self), parameters.text(1, " "), left, room - left);
}

Value center(Interpreter&, const Value& self, const Arguments& a) {
  return placed("center", self, a, Place::center);
}
Value ljust(Interpreter&, const Value& self, const Arguments& a) {
  return placed("ljust", self, a, Place::left);
}
Value rjust(Interpreter&, const Value& self, const Arguments& a) {
  return placed("rjust", self, a, Place::right);
}

Value zfill(Interpreter&, const Value& self, const Arguments& arguments) {
  const Parameters parameters("zfill", arguments, {"width"}, 1);
  const Text& text = own(self);
  const std::size_t width = to_size(parameters.integer(0, 0)), size = count_code_points(text.bytes);
  const std::size_t sign = !text.bytes.empty() && (text.bytes[0] == '+' || text.bytes[0] == '-') ? 1 : 0;
  Text out = text.part(0, sign);
  out.append(filled(text.part(sign, text.size()), Text("0"), width > size ? width - size : 0, 0));
  return out;
}

constexpr MethodEntry kMethods[] = {
    {"split", split},           {"rsplit", rsplit},         {"splitlines", splitlines},
    {"partition", partition},   {"rpartition", rpartition}, {"center", center},
    {"ljust", ljust},           {"rjust", rjust},           {"zfill", zfill},
};

}  // namespace split_methods
}  // namespace

const MethodEntry* find_split_method(std::string_view name) {
  return find_entry(split_methods::kMethods, name);
}

}  // namespace switchyard::jinja

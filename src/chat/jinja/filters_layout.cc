// Filters that lay texts out: indent, center, truncate, wordwrap, wordcount.
#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>

#include "chat/jinja/interpreter.h"
#include "chat/jinja/markup.h"
#include "chat/jinja/text_search.h"

namespace switchyard::jinja {

namespace {
namespace layout_filters {

Value indent(Interpreter&, const Value& value, const Arguments& arguments) {
  const Parameters parameters("indent", arguments, {"width", "first", "blank"});
  Text indention;
  if (parameters.has(0) && parameters[0].is_text()) {
    indention = *parameters[0].text();
  } else {
    const std::size_t width = to_size(parameters.integer(0, 4));
    Budget::check_bytes(width);
    indention = Text(std::string(width, ' '));
  }
  refuse_undefined(value);
  if (!value.is_text()) fail_other(fmt::format("indent takes a text, not {}", type_name(value)));
  Text whole = *value.text();
  whole.append("\n");  // as Jinja2: a last line that is empty is a line, too
  const std::vector<Value> lines = lines_of(whole, false);
  Text out;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const Text& line = *lines[i].text();
    if (i > 0) out.append("\n");
    const bool is_indented =
        i == 0 ? parameters.flag(1, false) : parameters.flag(2, false) || line.size() > 0;
    if (is_indented) out.append(indention);
    out.append(line);
  }
  return like(value, std::move(out));
}

Value center(Interpreter& interpreter, const Value& value, const Arguments& arguments) {
  const Parameters parameters("center", arguments, {"width"});
  Arguments to_method;
  to_method.positional.push_back(parameters.has(0) ? parameters[0] : Value(80));
  return interpreter.call_method(soft_str(value), "center", to_method);
}

Value truncate(Interpreter&, const Value& value, const Arguments& arguments) {
  const Parameters parameters("truncate", arguments, {"length", "killwords", "end", "leeway"});
  const Text text = str(value), end = parameters.text(2, "...");
  const Integer length = parameters.integer(0, 255),
                leeway = parameters.has_value(3) ? parameters.integer(3, 5) : 5;
  const auto end_size = static_cast<Integer>(count_code_points(end.bytes));
  if (length < end_size) fail_other("truncate: the length is less than the end's");
  if (leeway < 0) fail_other("truncate: the leeway is negative");
  if (static_cast<Integer>(count_code_points(text.bytes)) <= length + leeway)
    return value.is_text() ? value : Value(text);
  Text out = text.part(0, byte_of(text.bytes, to_size(length - end_size)));
  if (!parameters.flag(1, false)) {
    const std::size_t space = out.bytes.rfind(' ');
    if (space != std::string::npos) out = out.part(0, space);
  }
  out.append(is_markup(value) ? escaped(end) : end);
  return like(value, std::move(out));
}

bool is_word_character(std::int32_t point) {
  if (point == '_') return true;
  const auto kind = utf8proc_category(point);
  return (kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LO) || kind == UTF8PROC_CATEGORY_ND ||
         kind == UTF8PROC_CATEGORY_NL || kind == UTF8PROC_CATEGORY_NO;
}

Value wordcount(Interpreter&, const Value& value, const Arguments&) {
  std::size_t count = 0;
  bool within = false;
  for (const std::int32_t point : code_points(str(value).bytes)) {
    const bool is_word = is_word_character(point);
    if (is_word && !within) ++count;
    within = is_word;
  }
  return count;
}

constexpr FilterEntry kFilters[] = {{"indent", indent},
                                    {"center", center},
                                    {"truncate", truncate},
                                    {"wordcount", wordcount}};

}  // namespace layout_filters
}  // namespace

std::optional<Filter> find_layout_filter(std::string_view name) {
  const FilterEntry* entry = find_entry(layout_filters::kFilters, name);
  return entry == nullptr ? std::nullopt : std::optional(entry->filter);
}

}  // namespace switchyard::jinja

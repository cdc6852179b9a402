// Markup, as of Python's package markupsafe: a text that is HTML. Texts that are joined to it are escaped.
#pragma once

#include <string>
#include <string_view>

#include "chat/jinja/value.h"

namespace switchyard::jinja {

bool is_markup(const Value& value);
// The text as Markup, or as a plain text.
Text as_markup(Text text, bool is = true);
// A text as `value` is one: Markup where that is Markup.
Value like(const Value& value, Text text);
// The value's text as HTML, with & < > " and ' escaped; Markup as it is.
Text escaped(const Value& value);
Text escaped_text(const Text& text);
// The text without comments and tags, with one space between words, and without escapes.
std::string without_tags(std::string_view text);
std::string unescaped_html(std::string_view text);
// Returns the result of a str method that was called on Markup: texts in the result are Markup, too.
Value markup_result(std::string_view method, Value result);
// The arguments of such a call: of some methods they are escaped.
Arguments markup_arguments(std::string_view method, const Arguments& arguments);

}  // namespace switchyard::jinja

// Searches that methods and filters of texts share.
#pragma once

#include "chat/jinja/value.h"

namespace switchyard::jinja {

// Python's strip with `characters`: a text, or none for white space.
Text strip_text(const Text& text, const Value& characters, Sides sides);
// The bytes between two indices of code points, which may be none or count from the end.
TextRange index_range(const Text& text, const Value& start, const Value& end);
Text replaced(const Text& text, const Text& old, const Text& by, Integer count);  // count < 0: all
std::size_t count_of(std::string_view text, std::string_view part);
std::vector<Value> lines_of(const Text& text, bool keep_ends);  // str.splitlines
std::vector<Value> words_of(const Text& text);                  // str.split()

}  // namespace switchyard::jinja

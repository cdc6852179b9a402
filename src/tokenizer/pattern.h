// Expressions of tokenizers in the words of PCRE2.
#pragma once

#include <string>
#include <string_view>

#include "tokenizer/engine_classes.h"

namespace switchyard {

// Translates an expression in the syntax of Oniguruma, which the library `tokenizers` reads: classes of characters as
// its engine knows them, sets with unions, intersections and sets inside, letters of either case, and quantifiers.
// The result needs PCRE2_UTF | PCRE2_UCP and lines that end in a line feed. Error(usage) naming `where` and the place
// for syntax that is not understood.
std::string pcre2_pattern(std::string_view pattern, const std::string& where, Texts texts);

}  // namespace switchyard

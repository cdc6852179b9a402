// Sets of characters in the words of PCRE2, whatever version of Unicode it knows.
#pragma once

#include <string>
#include <string_view>

#include "tokenizer/code_set.h"

namespace switchyard {

// The texts that an expression must be right for: all, or those without characters that PCRE2 classes otherwise than
// the tables here (most of them are newer than it). Expressions for such texts are shorter and match faster.
enum class Texts { all, undisputed };
bool has_disputed(std::string_view text);  // valid UTF-8

// An expression for one character of the set: the categories that PCRE2 has for most of it, corrected by the
// characters that it classes otherwise. Works with PCRE2_UTF | PCRE2_UCP, without regard to case.
std::string pcre2_class(const CodeSet& set, Texts texts);

}  // namespace switchyard

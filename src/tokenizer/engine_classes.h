// Sets of characters in the words of PCRE2, whatever version of Unicode it knows.
#pragma once

#include <string>

#include "tokenizer/code_set.h"

namespace switchyard {

// An expression for one character of the set: the categories that PCRE2 has for most of it, corrected by the
// characters that it classes otherwise. Works with PCRE2_UTF | PCRE2_UCP, without regard to case.
std::string pcre2_class(const CodeSet& set);

}  // namespace switchyard

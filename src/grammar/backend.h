// The compiler of rules and the matcher of texts: xgrammar/ or, in a build without it, no_xgrammar/.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "grammar/grammar.h"

namespace switchyard::grammar {

// The grammar of `ebnf` (xgrammar's, rule `root`) for a vocabulary. The last 64 are kept. GrammarError.
// Any thread may call it.
std::shared_ptr<const Grammar> compiled(const Vocabulary& vocabulary, const std::string& ebnf);
// Texts of special tokens.
const std::map<std::string, std::int32_t>& special_tokens(const Vocabulary& vocabulary);

}  // namespace switchyard::grammar

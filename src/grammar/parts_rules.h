// The parts of a text (grammar.h) as one expression.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "grammar/grammar.h"
#include "grammar/json_rules.h"

namespace switchyard::grammar {

// `special`: texts that are one token. GrammarError.
Expression parts_expression(JsonRules& json, const std::vector<Part>& parts,
                            const std::map<std::string, std::int32_t>& special);

}  // namespace switchyard::grammar

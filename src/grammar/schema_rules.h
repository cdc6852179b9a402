// A JSON schema as grammar rules.
#pragma once

#include <nlohmann/json.hpp>

#include "grammar/json_rules.h"

namespace switchyard::grammar {

// The values that keep `schema`, which is checked first. A schema that no value keeps gives an expression
// that cannot end (see Rules::ebnf). GrammarError.
Expression schema_expression(JsonRules& json, const Json& schema);

}  // namespace switchyard::grammar

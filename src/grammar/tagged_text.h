// Values between tags, where a text stands without quotes (TaggedText in grammar.h).
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "grammar/json_rules.h"

namespace switchyard::grammar {

// The values that keep `schema`, which is checked first, each with `end` behind it. A text does not have
// `tag`. What reads them takes a text that is JSON of another of the schema's types as that: where such a
// type has demands of its own, no text begins as its JSON does. GrammarError.
Expression tagged_expression(JsonRules& json, const Json& schema, bool is_text, std::string_view tag,
                             const Expression& end);

}  // namespace switchyard::grammar

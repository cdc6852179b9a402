// Any JSON as a schema, and any text as a regular expression: rules are made, or a GrammarError says why not.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "grammar/grammar.h"
#include "grammar/json_rules.h"
#include "grammar/regex.h"
#include "grammar/schema_rules.h"

namespace {

using namespace switchyard::grammar;

template <typename Build>
void make(const Build& build) {
  try {
    Rules rules;
    JsonRules json(rules);
    const std::int32_t root = rules.add(build(json));
    rules.ebnf(root);
  } catch (const GrammarError&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const Json schema = Json::parse(input, nullptr, false);
  if (schema.is_discarded()) {
    make([&](JsonRules&) { return as_text(anchored(parse_regex(input), false)); });
  } else {
    make([&](JsonRules& json) { return schema_expression(json, schema); });
  }
  return 0;
}

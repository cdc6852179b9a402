// Walks a JSON schema and refuses what a grammar of it would not keep.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace switchyard::grammar {

using Json = nlohmann::ordered_json;

struct SchemaLimits {
  static constexpr std::size_t bytes = 256 << 10;
  static constexpr int depth = 64;
  static constexpr std::int64_t repetitions = 10'000;
  static constexpr std::size_t name_length = 500;  // bytes of a property's name
  static constexpr std::size_t names = 5'000;      // of one object
};

// GrammarError names the keyword and its place (`"not" at #/properties/a is not kept`) where the schema has a
// keyword or format that is not kept, a value of the wrong kind, a $ref that leads nowhere or out of the
// document, a pattern that is not kept, a oneOf of which two branches may both hold, or is beyond a limit.
void check_schema(const Json& schema);

// The schema that "#", "#/a/b" names within `root`. GrammarError.
const Json& resolve(const Json& root, std::string_view reference);

}  // namespace switchyard::grammar

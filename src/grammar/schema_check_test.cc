#include "grammar/schema_check.h"

#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "grammar/grammar.h"
#include "grammar/json_rules.h"
#include "grammar/rules.h"
#include "grammar/schema_rules.h"

namespace switchyard::grammar {

namespace {

// Returns the error of a schema that its check, or the making of its rules, refuses.
std::optional<std::string> refusal(const Json& schema) {
  try {
    Rules rules;
    JsonRules json(rules);
    const std::int32_t root = rules.add(schema_expression(json, schema));
    if (!rules.ebnf(root)) return "no text keeps the schema";
    return std::nullopt;
  } catch (const GrammarError& error) {
    return error.what();
  }
}

struct Refused {
  const char* schema;
  std::vector<std::string> says;
};

}  // namespace

TEST(SchemaCheck, PassesOverAnnotations) {
  for (
      const char* schema :
      {R"({"title":"a","description":"b","default":1,"examples":[1],"$comment":"c","deprecated":true})",
       R"({"readOnly":true,"writeOnly":false,"example":{"not":1},"externalDocs":{},"xml":{},"discriminator":{}})",
       R"({"contentEncoding":"base64","contentMediaType":"text/plain","contentSchema":{"not":{}}})",
       R"({"propertyOrdering":["a"],"x-order":1,"$anchor":"a","unknown":{"if":1}})",
       R"({"type":"integer","format":"int64"})", R"({"type":"integer","format":"int32"})",
       R"({"type":"number","format":"float"})", R"({"type":"number","format":"double"})",
       R"({"type":"string","format":"password"})", R"({"type":"string","format":"binary"})",
       R"({"type":"string","format":"byte"})", R"({"type":"string","format":"path"})",
       R"({"type":"string","format":"a-word-of-mine","pattern":"^a$"})",
       R"({"type":"string","nullable":true})"})
    EXPECT_EQ(refusal(Json::parse(schema)), std::nullopt) << schema;
}

TEST(SchemaCheck, RefusesByNameAndPlace) {
  const std::vector<Refused> cases = {
      {R"({"not":{}})", {"\"not\"", "at #"}},
      {R"({"properties":{"a":{"if":{}}}})", {"\"if\"", "#/properties/a"}},
      {R"({"items":{"uniqueItems":true}})", {"\"uniqueItems\"", "#/items"}},
      {R"({"anyOf":[{"type":"null"},{"multipleOf":2}]})", {"\"multipleOf\"", "#/anyOf/1"}},
      {R"({"$defs":{"a/b":{"contains":{}}}})", {"\"contains\"", "#/$defs/a~1b"}},
      {R"({"patternProperties":{}})", {"\"patternProperties\""}},
      {R"({"propertyNames":{}})", {"\"propertyNames\""}},
      {R"({"dependentRequired":{}})", {"\"dependentRequired\""}},
      {R"({"dependentSchemas":{}})", {"\"dependentSchemas\""}},
      {R"({"unevaluatedProperties":false})", {"\"unevaluatedProperties\""}},
      {R"({"unevaluatedItems":false})", {"\"unevaluatedItems\""}},
      {R"({"minProperties":1})", {"\"minProperties\""}},
      {R"({"maxProperties":1})", {"\"maxProperties\""}},
      {R"({"minContains":2})", {"\"minContains\""}},
      {R"({"additionalItems":false})", {"\"additionalItems\""}},
      {R"({"type":"number","minimum":0.5})", {"\"minimum\""}},
      {R"({"oneOf":[{"type":"integer"},{"type":"number"}]})", {"\"oneOf\"", "0 and 1"}},
      {R"({"properties":{"a":{"oneOf":[{},{"type":"null"}]}}})", {"\"oneOf\"", "#/properties/a"}},
      {R"({"format":"hostname"})", {"\"format\"", "hostname"}},
      {R"({"format":"duration"})", {"\"format\"", "duration"}},
      {R"({"then":{}})", {"\"then\""}},
      {R"({"pattern":"(?=a)b"})", {"\"pattern\"", "look-ahead"}},
      {R"({"pattern":"(a)\\1"})", {"\"pattern\"", "back-reference"}},
      {R"({"pattern":"("})", {"\"pattern\""}},
      {R"({"pattern":"a{10001}"})", {"\"pattern\"", "10,000"}},
      {R"({"pattern":"a","format":"date"})", {"\"format\""}},
      {R"({"type":"text"})", {"\"type\""}},
      {R"({"type":[]})", {"\"type\""}},
      {R"({"items":[{}]})", {"#/items"}},
      {R"({"required":"a"})", {"\"required\""}},
      {R"({"enum":[]})", {"\"enum\""}},
      {R"({"minLength":-1})", {"\"minLength\""}},
      {R"({"maxLength":10001})", {"\"maxLength\"", "10000"}},
      {R"({"maxItems":1.5})", {"\"maxItems\""}},
      {R"({"minimum":18446744073709551615})", {"\"minimum\""}},
      {R"({"exclusiveMinimum":true})", {"\"exclusiveMinimum\""}},
      {R"({"$ref":"#/$defs/none"})", {"\"$ref\"", "#/$defs/none"}},
      {R"({"$ref":"http://a/b"})", {"\"$ref\"", "out of the document"}},
      {R"({"$ref":"#"})", {"refers to itself"}},
      {R"({"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]})", {"no text"}},
      {R"([])", {"schema"}},
      {R"(3)", {"schema"}},
      {R"(false)", {"no text"}},
  };
  for (const Refused& one : cases) {
    const auto said = refusal(Json::parse(one.schema));
    ASSERT_TRUE(said) << one.schema;
    for (const std::string& part : one.says)
      EXPECT_NE(said->find(part), std::string::npos) << one.schema << ": " << *said;
    EXPECT_EQ(said->find('\n'), std::string::npos) << *said;
  }
}

TEST(SchemaCheck, KeepsWhatItLists) {
  for (
      const char* schema :
      {R"({})", R"(true)",
       R"({"$schema":"s","$id":"i","title":"t","description":"d","default":{},"examples":[1],"deprecated":true,"readOnly":true})",
       R"({"uniqueItems":false,"minProperties":0})",
       R"({"definitions":{"a":{"type":"null"}},"$ref":"#/definitions/a"})",
       R"({"oneOf":[{"type":"integer","maximum":3},{"type":"integer","exclusiveMinimum":3}]})",
       R"({"oneOf":[{"type":"string","maxLength":2},{"type":"string","minLength":3}]})",
       R"({"oneOf":[{"properties":{"k":{"const":1}},"required":["k"],"type":"object"},{"properties":{"k":{"const":2}},"required":["k"],"type":"object"}]})",
       R"({"minimum":-9223372036854775808,"maximum":9223372036854775807,"type":"integer"})",
       R"({"type":"integer","minimum":0.5,"maximum":7.5})",
       R"({"$ref":"#/%24defs/a%20b","$defs":{"a b":{}}})", R"({"type":"array","maxItems":10000})",
       R"({"anyOf":[{"$ref":"#"},{"type":"null"}]})"}) {
    const auto said = refusal(Json::parse(schema));
    EXPECT_FALSE(said) << schema << ": " << *said;
  }
}

TEST(SchemaCheck, ChainsOfReferencesAreNoDepth) {
  Json schema = {{"$ref", "#/$defs/0"}, {"$defs", {{"150", {{"type", "null"}}}}}};
  for (int i = 0; i < 150; ++i)
    schema["$defs"][std::to_string(i)] = {{"type", "array"},
                                          {"items", {{"$ref", "#/$defs/" + std::to_string(i + 1)}}}};
  EXPECT_FALSE(refusal(schema));
}

// Schemas that are small, or within the limit of bytes, and ask for much.
TEST(SchemaCheck, HostileSchemasTakeLittleTime) {
  std::vector<Json> schemas;
  Json deep = true;
  for (int i = 0; i < 70; ++i) deep = {{"items", deep}};
  schemas.push_back(deep);
  Json doubled = {{"$defs", {{"60", {{"type", "null"}}}}}, {"$ref", "#/$defs/0"}};
  for (int i = 0; i < 60; ++i) {
    const Json next = {{"$ref", "#/$defs/" + std::to_string(i + 1)}};
    doubled["$defs"][std::to_string(i)] = {{"allOf", {next, next}}};
  }
  schemas.push_back(doubled);
  Json product = {{"allOf", Json::array()}};
  for (int i = 0; i < 30; ++i)
    product["allOf"].push_back({{"anyOf", {{{"minLength", i}}, {{"maxLength", 100 + i}}}}});
  schemas.push_back(product);
  Json lists = {{"enum", Json::array()}};
  for (int i = 0; i < 15'000; ++i) lists["enum"].push_back(i);
  schemas.push_back({{"allOf", {lists, lists}}});
  schemas.push_back({{"oneOf", {lists, {{"type", "integer"}, {"minimum", 100'000}}}}});
  schemas.push_back(Json::parse(R"({"anyOf":[{"$ref":"#"}],"oneOf":[{"$ref":"#"},{"$ref":"#"}]})"));
  schemas.push_back(Json::parse(R"({"const":1,"anyOf":[{"$ref":"#"},{"$ref":"#"}]})"));
  Json wide = {{"type", "object"}};
  for (int i = 0; i < 4'900; ++i) {
    wide["properties"]["p" + std::to_string(i)] = {{"type", "null"}};
    if (i % 3 == 0) wide["required"].push_back("p" + std::to_string(i));
  }
  schemas.push_back(wide);
  Json branches = {{"oneOf", Json::array()}};
  for (int i = 0; i < 3'000; ++i) branches["oneOf"].push_back({{"const", i}});
  schemas.push_back(branches);
  schemas.push_back({{"required", {std::string(400'000, 'a')}}});
  for (const Json& schema : schemas) {
    const auto begin = std::chrono::steady_clock::now();
    const auto said = refusal(schema);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    EXPECT_LT(seconds, 30) << schema.dump().substr(0, 200);
    std::printf("%.2f s of wall clock: %.80s: %s\n", seconds, schema.dump().c_str(),
                said.value_or("kept").c_str());
  }
}

}  // namespace switchyard::grammar

// The first byte says what the rest is: a regular expression or a schema, and after a 0xff a text. Rules are
// made, or a GrammarError says why not. With xgrammar the grammar takes the text byte by byte, and must agree
// with its masks.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "grammar/grammar.h"
#include "grammar/json_rules.h"
#include "grammar/regex.h"
#include "grammar/schema_rules.h"

namespace {

using namespace switchyard::grammar;

const Vocabulary& bytes() {
  static const Vocabulary vocabulary = [] {
    std::vector<std::optional<std::string>> tokens;
    for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(std::string(1, static_cast<char>(byte)));
    tokens.resize(257);
    return Vocabulary(tokens, std::vector<std::int32_t>{256});
  }();
  return vocabulary;
}

void match(const std::shared_ptr<const Grammar>& grammar, std::string_view text) {
  Matcher matcher(grammar);
  std::vector<std::uint32_t> bits(9);
  for (char c : text) {
    const auto token = static_cast<unsigned char>(c);
    matcher.mask(bits);
    const bool allowed = (bits[token / 32] >> (token % 32) & 1u) != 0;
    CHECK(matcher.accept(token) == allowed, "token {}", token);
    if (!allowed) return;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::size_t gap = std::min(input.find('\xff'), input.size());
  const std::string_view source = input.substr(0, gap), text = input.substr(std::min(gap + 1, input.size()));
  try {
    Rules rules;
    JsonRules json(rules);
    if (data[0] % 2 == 0) {
      rules.ebnf(rules.add(as_text(rules, anchored(parse_regex(source), true))));
      if (is_built_in()) match(Grammar::of_regex(bytes(), source), text);
    } else {
      const Json schema = Json::parse(source, nullptr, false);
      if (schema.is_discarded()) return 0;
      rules.ebnf(rules.add(schema_expression(json, schema)));
      if (is_built_in()) match(Grammar::of_json_schema(bytes(), schema), text);
    }
  } catch (const GrammarError&) {
  }
  return 0;
}

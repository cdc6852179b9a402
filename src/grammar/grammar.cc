#include "grammar/grammar.h"

#include <fmt/format.h>

#include <algorithm>

#include "grammar/backend.h"
#include "grammar/json_rules.h"
#include "grammar/parts_rules.h"
#include "grammar/regex.h"
#include "grammar/rules.h"
#include "grammar/schema_rules.h"
#include "grammar/work_limit.h"

namespace switchyard::grammar {

namespace {

std::vector<std::optional<std::string>> bytes_of_tokens(const Tokenizer& tokenizer, std::int64_t vocab) {
  std::vector<std::optional<std::string>> tokens(static_cast<std::size_t>(vocab));
  for (std::int64_t id = 0; id < std::min<std::int64_t>(vocab, tokenizer.vocab_size()); ++id) {
    tokens[static_cast<std::size_t>(id)] = tokenizer.token_bytes(static_cast<std::int32_t>(id));
  }
  return tokens;
}

std::map<std::string, std::int32_t> special_texts(const Tokenizer& tokenizer, std::int64_t vocab) {
  std::map<std::string, std::int32_t> special;
  for (std::int64_t i = 0; i < std::min<std::int64_t>(vocab, tokenizer.vocab_size()); ++i) {
    const auto id = static_cast<std::int32_t>(i);
    if (tokenizer.token_bytes(id)) continue;
    const std::string text = tokenizer.decode_all({{id}});
    if (!text.empty() && text != "\xef\xbf\xbd") special.emplace(text, id);
  }
  return special;
}

// Compiling takes time that grows faster than the rules: of so many characters
// some seconds, which nothing ends.
constexpr std::size_t kMostCharacters = 200'000;

void require_characters(std::size_t characters) {
  if (characters > kMostCharacters)
    throw GrammarError(fmt::format("a grammar of more than {} characters is not kept", kMostCharacters));
}

// Counts a character that the rules write as \UXXXXXXXX once.
std::size_t characters_of(const std::string& ebnf) {
  constexpr std::string_view kEscape = "\\U";
  std::size_t escapes = 0;
  for (std::size_t at = ebnf.find(kEscape); at != std::string::npos; at = ebnf.find(kEscape, at + 1))
    ++escapes;
  return ebnf.size() - 9 * escapes;
}

// Makes rules by `build` and compiles them.
template <typename Build>
std::shared_ptr<const Grammar> grammar_of(const Vocabulary& vocabulary, const Build& build) {
  const WorkLimit limit;
  Rules rules;
  JsonRules json(rules);
  const std::int32_t root = rules.add(build(json));
  const std::optional<std::string> ebnf = rules.ebnf(root);
  if (!ebnf) throw GrammarError("no text keeps the schema");
  require_characters(characters_of(*ebnf));
  return compiled(vocabulary, *ebnf);
}

}  // namespace

Vocabulary::Vocabulary(const Tokenizer& tokenizer, std::int64_t vocab, std::span<const std::int32_t> ends)
    : Vocabulary(bytes_of_tokens(tokenizer, vocab), ends, special_texts(tokenizer, vocab)) {
  Grammar::of_json_object(*this);  // so that the masks of rules that most grammars share are there
}

std::shared_ptr<const Grammar> Grammar::of_json_schema(const Vocabulary& vocabulary, const Json& schema) {
  return grammar_of(vocabulary, [&](JsonRules& json) { return schema_expression(json, schema); });
}

std::shared_ptr<const Grammar> Grammar::of_json_object(const Vocabulary& vocabulary) {
  return grammar_of(vocabulary, [](JsonRules& json) { return json.object(); });
}

std::shared_ptr<const Grammar> Grammar::of_regex(const Vocabulary& vocabulary, std::string_view regex) {
  require_characters(regex.size());
  return grammar_of(vocabulary, [&](JsonRules& json) {
    return as_text(json.rules(), anchored(parse_regex(regex), false));
  });
}

std::shared_ptr<const Grammar> Grammar::of_choice(const Vocabulary& vocabulary,
                                                  const std::vector<std::string>& texts) {
  std::size_t characters = 0;
  for (const std::string& one : texts) characters += one.size();
  require_characters(characters);
  return grammar_of(vocabulary, [&](JsonRules&) {
    std::vector<Expression> of;
    for (const std::string& one : texts) of.push_back(text(one));
    return choice(std::move(of));
  });
}

std::shared_ptr<const Grammar> Grammar::of_parts(const Vocabulary& vocabulary,
                                                 const std::vector<Part>& parts) {
  return grammar_of(
      vocabulary, [&](JsonRules& json) { return parts_expression(json, parts, special_tokens(vocabulary)); });
}

}  // namespace switchyard::grammar

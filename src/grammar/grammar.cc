#include "grammar/grammar.h"

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

// Makes rules by `build` and compiles them.
template <typename Build>
std::shared_ptr<const Grammar> grammar_of(const Vocabulary& vocabulary, const Build& build) {
  const WorkLimit limit;
  Rules rules;
  JsonRules json(rules);
  const std::int32_t root = rules.add(build(json));
  const std::optional<std::string> ebnf = rules.ebnf(root);
  if (!ebnf) throw GrammarError("no text keeps the schema");
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
  return grammar_of(vocabulary, [&](JsonRules& json) {
    return as_text(json.rules(), anchored(parse_regex(regex), false));
  });
}

std::shared_ptr<const Grammar> Grammar::of_choice(const Vocabulary& vocabulary,
                                                  const std::vector<std::string>& texts) {
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

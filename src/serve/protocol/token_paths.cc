#include "serve/protocol/token_paths.h"

#include <fmt/format.h>

#include "serve/protocol/chat_answer.h"

namespace switchyard::serve {
namespace {

using nlohmann::json;

bool flag(Fields& fields, const char* name, bool otherwise) {
  return fields.find(name) == nullptr ? otherwise : fields.boolean(name);
}

std::vector<std::int32_t> tokens_of_text(const json& text, Fields& fields, const char* field,
                                         const ServedModel& model) {
  if (!text.is_string())
    throw BadRequest(field, fmt::format("{}: expected a text, got {}", field, Fields::shown(text)));
  const Tokenizer& tokenizer = *model.tokenizer;
  const bool special = flag(fields, "parse_special", true);
  const auto own = text.get<std::string>();
  std::vector<std::int32_t> tokens = special ? tokenizer.encode_with_special(own) : tokenizer.encode(own);
  bool adds = flag(fields, "add_special", false);
  if (fields.find("add_special_tokens") != nullptr) adds = fields.boolean("add_special_tokens");
  if (adds && tokenizer.bos()) tokens.insert(tokens.begin(), *tokenizer.bos());
  if (adds && tokenizer.ends_prompts() && tokenizer.eos()) tokens.push_back(*tokenizer.eos());
  return tokens;
}

}  // namespace

std::string tokenize(const std::string& body, const ServedModel& model, std::int64_t key) {
  const chat::Json whole = parse_chat_body(body);
  const json object(whole);
  Fields fields(object);
  const bool is_chat = fields.find("messages") != nullptr;
  const json* const content = fields.find("content");
  const json* const prompt = fields.find("prompt");
  std::vector<std::int32_t> tokens;
  if (is_chat) {
    tokens = prompt_of_chat(whole, model, key).tokens;
  } else if (content != nullptr || prompt != nullptr) {
    tokens = content != nullptr ? tokens_of_text(*content, fields, "content", model)
                                : tokens_of_text(*prompt, fields, "prompt", model);
  } else {
    throw BadRequest("content", "content: expected a text in content or prompt, or messages, got none");
  }
  json answer{{"count", tokens.size()}, {"max_model_len", model.capacity}};
  if (flag(fields, "with_pieces", false)) {
    answer["tokens"] = json::array();
    for (const std::int32_t id : tokens)
      answer["tokens"].push_back({{"id", id}, {"piece", shown_token(*model.tokenizer, id)}});
  } else {
    answer["tokens"] = tokens;
  }
  if (flag(fields, "return_token_strs", false)) {
    answer["token_strs"] = json::array();
    for (const std::int32_t id : tokens) answer["token_strs"].push_back(shown_token(*model.tokenizer, id));
  }
  return to_text(answer) + "\n";
}

std::string detokenize(const std::string& body, const ServedModel& model) {
  const json object = parse_object(body);
  Fields fields(object);
  const json* const list = fields.find("tokens");
  if (list == nullptr || !list->is_array()) throw BadRequest("tokens", "tokens: expected a list of tokens");
  std::vector<std::int32_t> tokens;
  for (const json& id : *list) {
    if (!id.is_number_integer() || id < 0 || id >= model.vocab)
      throw BadRequest("tokens", fmt::format("tokens: expected tokens of 0 to {}, got {}", model.vocab - 1,
                                             Fields::shown(id)));
    tokens.push_back(id.get<std::int32_t>());
  }
  const std::string text = model.tokenizer->decode_all(tokens);
  return to_text({{"content", text}, {"prompt", text}}) + "\n";
}

std::string apply_template(const std::string& body, const ServedModel& model, std::int64_t key) {
  return to_text({{"prompt", prompt_of_chat(parse_chat_body(body), model, key).rendered.text}}) + "\n";
}

}  // namespace switchyard::serve

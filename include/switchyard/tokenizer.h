// A model's tokenizer and chat template, without the model.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "switchyard/error.h"

namespace switchyard {

class Settings;

// Immutable. Any thread may call it.
class ModelTokenizer {
 public:
  // `path`: a tokenizer's file (tokenizer.json, *.model, *.tiktoken, a GGUF file), a folder with one, a
  // checkpoint or a run, or the word byte. Error(usage) for a path without a tokenizer.
  static ModelTokenizer of(const std::string& path);
  // The tokenizer, template, template arguments and ends that an engine of these settings has. Error(usage)
  // where they name no tokenizer.
  static ModelTokenizer of(const Settings& settings);
  // From the texts of a tokenizer.json and of the tokenizer_config.json that goes with it, or "".
  static ModelTokenizer of_json(std::string_view tokenizer, std::string_view config = {});

  // `special`: texts of special tokens become their ids where the tokenizer's rules alone would not look for
  // them. Tokens that stand before and after a document are not added.
  std::vector<std::int32_t> encode(std::string_view text, bool special = false) const;
  // The bytes of a text, which may begin and end within a character. Without `special`, special tokens give
  // no text. Ids without a token give U+FFFD or nothing.
  std::string decode(const std::vector<std::int32_t>& tokens, bool special = false) const;
  // One more than the largest id.
  std::int64_t vocabulary() const;
  // The tokens before and after a document.
  std::optional<std::int32_t> begin_token() const, end_token() const;
  // Tokens that end a model's text: end_token() and those of the folder's generation_config.json.
  const std::vector<std::int32_t>& end_tokens() const;

  bool has_chat_template() const;
  // The template's own text; "" without one.
  std::string chat_template() const;
  // The prompt of a chat. `request` is the JSON of a chat request's body: messages, tools,
  // add_generation_prompt, chat_template_kwargs, … (docs/http.md). Error(usage) where the template refuses
  // it, and without a template.
  std::string chat_text(std::string_view request) const;
  // Its tokens. Texts of special tokens that the messages bring are plain text.
  std::vector<std::int32_t> chat_tokens(std::string_view request) const;

 private:
  struct State;
  explicit ModelTokenizer(std::shared_ptr<const State> state);
  std::shared_ptr<const State> state_;
};

}  // namespace switchyard

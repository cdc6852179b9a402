// ChatTemplate: turns a request's messages and tools into the model's prompt.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "chat/bad_request.h"
#include "chat/jinja/template.h"

namespace switchyard::chat {

using Json = nlohmann::ordered_json;

// The text of a template as a model's files have it.
struct TemplateSource {
  std::string text;
  std::string tool_text;                 // for requests with tools; empty: `text`
  std::string origin;                    // where it was found, for people
  Json special_tokens = Json::object();  // bos_token, eos_token, … : their texts
};

// Finds a model's template: the file `given` where that is not empty; else chat_template.jinja in the folder;
// else chat_template of tokenizer_config.json (a text, or a list of {name, template}); else that of
// chat_template.json. additional_chat_templates/tool_use.jinja is for requests with tools. For a GGUF file
// its metadata tokenizer.chat_template and tokenizer.chat_template.tool_use. Special tokens are those of
// tokenizer_config.json and special_tokens_map.json, or of the GGUF file's tokenizer. None where there is no
// template. Error(usage) for a file that is not there or cannot be read.
std::optional<TemplateSource> find_template(const std::filesystem::path& model,
                                            const std::filesystem::path& given);
// The template and the special tokens of a tokenizer_config.json's content, which `origin` names to people.
std::optional<TemplateSource> template_of_settings(const nlohmann::json& settings, const std::string& origin);

// A request's messages as the model's prompt.
struct Prompt {
  std::string text;
  std::vector<TextRange> foreign;    // parts that the request wrote: added tokens are not looked for in them
  std::vector<TextRange> generated;  // what the template marks by {% generation %}: an assistant's own text
  bool opens_reasoning = false;  // the text ends within reasoning: its last <think> has no </think> after it
};

class ChatTemplate {
 public:
  struct Options {
    Json kwargs = Json::object();  // chat_template_kwargs of the command line
    bool allow_mutation = true;    // two published templates append to lists
    std::function<std::tm()> now = {};
  };
  // Parses the template and probes what it takes. Error(usage) names the line that does not parse.
  ChatTemplate(TemplateSource source, Options options);

  // Reads messages, tools, tool_choice, reasoning_effort, chat_template_kwargs, add_generation_prompt and
  // continue_final_message of a chat request's body. BadRequest; its code is
  // template_error where the template fails.
  Prompt prompt(const Json& body) const;
  // True where the template that such a request takes marks what an assistant writes.
  bool marks_generation(const Json& body) const;
  const TemplateSource& source() const { return source_; }

 private:
  TemplateSource source_;
  Options options_;
  // The parsed templates, with the answers of the probes.
  struct Parsed;
  std::shared_ptr<const Parsed> plain_, with_tools_;
};

}  // namespace switchyard::chat

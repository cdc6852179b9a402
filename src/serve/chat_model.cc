#include "serve/chat_model.h"

#include <utility>

#include "core/error.h"

namespace switchyard::serve {
namespace {

namespace fs = std::filesystem;

// Finds the chat template, which stands with the tokenizer or with the weights.
std::optional<chat::TemplateSource> template_of(const Config& config, const fs::path& weights) {
  const std::string given = config.get_string("chat_template_path");
  fs::path tokenizer = config.is_none("tokenizer_path") ? "" : config.get_string("tokenizer_path");
  if (config.get_string("tokenizer_type") == "byte") tokenizer.clear();
  if (!tokenizer.empty() && config.get_string("tokenizer_type") != "gguf" && !fs::is_directory(tokenizer))
    tokenizer = tokenizer.parent_path();
  for (const fs::path& place : {tokenizer, weights}) {
    if (place.empty() && given.empty()) continue;
    if (std::optional<chat::TemplateSource> source = chat::find_template(place, given)) return source;
  }
  return std::nullopt;
}

chat::Json template_kwargs(const Config& config) {
  const std::string text = config.get_string("chat_template_kwargs");
  if (text.empty()) return chat::Json::object();
  chat::Json kwargs = chat::Json::parse(text, nullptr, false);
  if (!kwargs.is_object()) fail_usage("chat_template_kwargs: expected JSON of an object, got {}", text);
  return kwargs;
}

}  // namespace

std::string name_of_model(const Config& config, const fs::path& weights) {
  const std::string folder = weights.filename().string();
  return folder.empty() || folder == "." || folder == ".." ? config.get_string("model_name") : folder;
}

std::shared_ptr<ChatModel> chat_model_of(const Config& config, const fs::path& weights) {
  std::optional<chat::TemplateSource> source = template_of(config, weights);
  if (!source) return nullptr;
  const std::string text = source->text + source->tool_text;
  auto chat = std::make_shared<ChatModel>(
      ChatModel{chat::ChatTemplate(std::move(*source), {.kwargs = template_kwargs(config)}),
                chat::format_of_template(text)});
  chat->trusts_messages = config.get_bool("trust_messages");
  chat->strict_fields = config.get_bool("strict_fields");
  return chat;
}

}  // namespace switchyard::serve

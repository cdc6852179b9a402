// The public ModelTokenizer: a tokenizer with its chat template.
#include <set>
#include <utility>

#include "chat/chat_template.h"
#include "core/error.h"
#include "engine/engine_impl.h"
#include "engine/stored_model.h"
#include "generate/generation_defaults.h"
#include "generate/sampling.h"
#include "serve/chat_model.h"
#include "switchyard/tokenizer.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_folder.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

chat::Json request_of(std::string_view text) {
  chat::Json request = chat::Json::parse(text, nullptr, false);
  if (!request.is_object()) fail_usage("[tokenizer] chat: expected a JSON object with messages");
  return request;
}

// The tokens that a model's folder says end its texts.
std::vector<std::int64_t> ends_of(const fs::path& path) {
  std::error_code none;
  const auto keys = is_stored_model(path)          ? generation_keys_of(path)
                    : fs::is_directory(path, none) ? generation_defaults(path)
                                                   : std::map<std::string, nlohmann::json>();
  const auto found = keys.find("decode_end_tokens");
  return found == keys.end() ? std::vector<std::int64_t>() : found->second.get<std::vector<std::int64_t>>();
}

}  // namespace

struct ModelTokenizer::State {
  std::unique_ptr<const Tokenizer> tokenizer;
  std::optional<chat::ChatTemplate> chat = {};
  std::vector<std::int32_t> ends = {};
  bool trusts_messages = false;

  void set_ends(const std::vector<std::int64_t>& more) {
    std::set<std::int32_t> all;
    if (tokenizer->eos()) all.insert(*tokenizer->eos());
    for (const std::int64_t id : more) {
      if (id >= 0 && id < tokenizer->vocab_size()) all.insert(static_cast<std::int32_t>(id));
    }
    ends.assign(all.begin(), all.end());
  }
  void set_chat(std::optional<chat::TemplateSource> source) {
    if (source) chat.emplace(std::move(*source), chat::ChatTemplate::Options{});
  }
  chat::Prompt prompt(std::string_view request) const {
    if (!chat) fail_usage("[tokenizer] chat: expected a chat template beside the tokenizer, got none");
    try {
      return chat->prompt(request_of(request));
    } catch (const chat::BadRequest& error) {
      fail_usage("[tokenizer] chat: {}", error.what());
    }
  }
};

ModelTokenizer::ModelTokenizer(std::shared_ptr<const State> state) : state_(std::move(state)) {}

ModelTokenizer ModelTokenizer::of(const std::string& path) {
  std::string type, file = path;
  if (is_stored_model(path)) {
    auto keys = keys_of_stored_model(path);
    if (keys["tokenizer_path"].is_string()) file = keys["tokenizer_path"].get<std::string>();
    if (keys["tokenizer_type"].is_string()) type = keys["tokenizer_type"].get<std::string>();
    if (type.empty()) fail_usage("[tokenizer] {}: expected a tokenizer in it, got none", path);
  } else {
    type = tokenizer_type_of(path);
  }
  auto state = std::make_shared<State>(State{make_tokenizer(type, type == "byte" ? "" : file)});
  if (path != "byte") {
    std::error_code none;
    const fs::path main = file,
                   beside = type == "gguf" || fs::is_directory(main, none) ? main : main.parent_path();
    std::optional<chat::TemplateSource> source =
        type == "byte" ? std::nullopt : chat::find_template(beside, "");
    state->set_chat(source ? std::move(source) : chat::find_template(path, ""));
  }
  state->set_ends(path == "byte" ? std::vector<std::int64_t>() : ends_of(path));
  return ModelTokenizer(state);
}

ModelTokenizer ModelTokenizer::of(const Settings& settings) {
  const Config& config = settings.checked().config;
  auto state = std::make_shared<State>(State{make_tokenizer_of(config)});
  if (state->tokenizer == nullptr)
    fail_usage("[tokenizer] tokenizer_path: expected the model's tokenizer, got none");
  if (const auto chats = serve::chat_model_of(config, config.get_string("load_parameters_path"))) {
    state->chat = chats->prompts;
    state->trusts_messages = chats->trusts_messages;
  }
  state->ends = switchyard::end_tokens(config, *state->tokenizer);
  return ModelTokenizer(state);
}

ModelTokenizer ModelTokenizer::of_json(std::string_view tokenizer, std::string_view config) {
  auto state = std::make_shared<State>(State{parse_huggingface(tokenizer, config, "tokenizer.json")});
  const auto settings = nlohmann::json::parse(config.empty() ? "{}" : config, nullptr, false);
  if (!settings.is_object()) fail_usage("[tokenizer] tokenizer_config.json: expected an object");
  state->set_chat(chat::template_of_settings(settings, "tokenizer_config.json"));
  state->set_ends({});
  return ModelTokenizer(state);
}

std::vector<std::int32_t> ModelTokenizer::encode(std::string_view text, bool special) const {
  return special ? state_->tokenizer->encode_with_special(text) : state_->tokenizer->encode(text);
}

std::string ModelTokenizer::decode(const std::vector<std::int32_t>& tokens, bool special) const {
  return special ? state_->tokenizer->decode_all(tokens) : state_->tokenizer->decode(tokens);
}

std::int64_t ModelTokenizer::vocabulary() const {
  return state_->tokenizer->vocab_size();
}

std::optional<std::int32_t> ModelTokenizer::begin_token() const {
  return state_->tokenizer->bos();
}

std::optional<std::int32_t> ModelTokenizer::end_token() const {
  return state_->tokenizer->eos();
}

const std::vector<std::int32_t>& ModelTokenizer::end_tokens() const {
  return state_->ends;
}

bool ModelTokenizer::has_chat_template() const {
  return state_->chat.has_value();
}

std::string ModelTokenizer::chat_template() const {
  return state_->chat ? state_->chat->source().text : "";
}

std::string ModelTokenizer::chat_text(std::string_view request) const {
  return state_->prompt(request).text;
}

std::vector<std::int32_t> ModelTokenizer::chat_tokens(std::string_view request) const {
  const chat::Prompt prompt = state_->prompt(request);
  if (state_->trusts_messages) return state_->tokenizer->encode_with_special(prompt.text);
  return state_->tokenizer->encode_with_special(prompt.text, prompt.foreign);
}

}  // namespace switchyard

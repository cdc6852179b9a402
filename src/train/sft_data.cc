#include "train/sft_data.h"

#include <filesystem>
#include <utility>

#include "core/error.h"
#include "core/json_file.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

// The folder or GGUF file of the tokenizer; "" for the byte tokenizer.
fs::path place_of_tokenizer(const Config& config) {
  const std::string& type = config.get_string("tokenizer_type");
  if (type == "byte" || config.is_none("tokenizer_path")) return "";
  const fs::path path = config.get_string("tokenizer_path");
  if (type == "gguf" || fs::is_directory(path)) return path;
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

std::optional<chat::TemplateSource> sft_template(const Config& config) {
  const std::string given = config.get_string("chat_template_path");
  for (const fs::path& place :
       {place_of_tokenizer(config), fs::path(config.get_string("load_parameters_path"))}) {
    if (place.empty() && given.empty()) continue;
    if (std::optional<chat::TemplateSource> source = chat::find_template(place, given)) return source;
  }
  return {};
}

chat::Json sft_template_kwargs(const Config& config) {
  const std::string text = config.get_string("chat_template_kwargs");
  if (text.empty()) return chat::Json::object();
  chat::Json kwargs = chat::Json::parse(text, nullptr, false);
  if (!kwargs.is_object())
    fail_usage("[data] chat_template_kwargs: expected JSON of an object, got {}", text);
  return kwargs;
}

// The token that begins a text: that of the tokenizer, else the one that its settings name, unless they say
// that none is added.
std::optional<std::int32_t> begin_token(const Config& config, const Tokenizer& tokenizer) {
  if (!config.get_bool("add_bos")) return {};
  if (tokenizer.bos()) return tokenizer.bos();
  const fs::path file = place_of_tokenizer(config) / "tokenizer_config.json";
  std::error_code problem;
  if (!fs::is_regular_file(file, problem)) return {};
  const nlohmann::json settings = parse_json(read_whole_file(file.string()), file.string());
  if (!settings.is_object() || settings.value("add_bos_token", nlohmann::json()) == false) return {};
  nlohmann::json token = settings.value("bos_token", nlohmann::json());
  if (token.is_object()) token = token.value("content", nlohmann::json());
  if (!token.is_string()) return {};
  const std::vector<std::int32_t> ids = tokenizer.encode_with_special(token.get<std::string>());
  return ids.size() == 1 ? std::optional(ids[0]) : std::nullopt;
}

}  // namespace

SftEncoder::SftEncoder(const Config& config, const Tokenizer& tokenizer, std::int64_t vocab,
                       bool keeps_text) {
  if (std::optional<chat::TemplateSource> source = sft_template(config))
    chat = std::make_unique<chat::ChatTemplate>(
        std::move(*source), chat::ChatTemplate::Options{.kwargs = sft_template_kwargs(config)});
  const bool pairs = config.get_bool("use_dpo");  // each is read as two lines
  lines = std::make_unique<ConversationEncoder>(
      tokenizer, chat.get(),
      ConversationOptions{.columns = pairs ? std::vector<std::string>{"prompt", "completion"}
                                           : config.get_strings("train_data_columns"),
                          .completion_only = pairs || config.get_bool("sft_train_on_completion_only"),
                          .last_answer_only = !pairs && config.get_bool("sft_last_answer_only"),
                          .trust_messages = config.get_bool("sft_trust_messages"),
                          .bos = begin_token(config, tokenizer),
                          .eos = config.get_bool("add_eos") ? tokenizer.eos() : std::nullopt,
                          .vocabulary = vocab,
                          .keeps_text = keeps_text});
}

std::vector<PreferencePair> pairs_of_run(const Config& config, const std::string& paths,
                                         const SftEncoder& encoder, ThreadPool& pool) {
  const std::vector<std::string> columns = config.get_strings("train_data_columns");
  check_pair_columns(columns);
  return read_pairs(paths, *encoder.lines, columns, pool);
}

std::optional<std::int64_t> max_prompt_of(const Config& config) {
  if (config.is_none("max_prompt_length")) return {};
  return config.get_int("max_prompt_length");
}

}  // namespace switchyard

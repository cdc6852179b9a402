// The engine's chats: requests and answers of `serve`'s protocol, texts of the engine's own loop.
#include "core/error.h"
#include "engine/engine_impl.h"
#include "serve/chat_model.h"
#include "serve/longest_token.h"
#include "serve/whole_chat.h"

namespace switchyard {
const serve::ServedModel& Engine::Impl::chats() {
  const Tokenizer& tokenizer = tokenizer_for("chat");
  const auto words = grammar::is_built_in() ? vocabulary_of_grammars() : nullptr;
  const std::scoped_lock lock(texts_mutex);
  if (served == nullptr) {
    const std::filesystem::path weights = config.get_string("load_parameters_path");
    auto made = std::make_shared<serve::ServedModel>();
    made->name = serve::name_of_model(config, weights);
    made->tokenizer = &tokenizer;
    made->vocab = model.vocab;
    made->capacity = config.get_int("max_target_length");
    made->sampling.strategy = SamplingStrategy::greedy;
    made->longest_token = serve::longest_token_bytes(tokenizer, model.vocab);
    made->chat = serve::chat_model_of(config, weights);
    made->vocabulary = words;
    if (made->chat == nullptr)
      fail_usage("[engine] chat: the model has no chat template: give chat_template_path=FILE");
    served = std::move(made);
  }
  return *served;
}

std::string Engine::chat(std::string_view request, const std::stop_token& stop) {
  const serve::ServedModel& served = impl_->chats();
  try {
    return serve::whole_chat(
        std::string(request), served, end_tokens(impl_->config, *served.tokenizer),
        [&](const std::vector<texts::TextRequest>& texts) { return impl_->make_all("chat", texts, stop); });
  } catch (const chat::BadRequest& error) {
    throw SettingError(fmt::format("[engine] chat: {}", error.what()), error.field, "", "");
  }
}

}  // namespace switchyard

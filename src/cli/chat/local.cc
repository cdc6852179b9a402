#include "cli/chat/local.h"

#include <ctime>
#include <random>

#include "core/error.h"
#include "serve/protocol/chat_answer.h"
#include "serve/protocol/chat_request.h"
#include "serve/protocol/completions.h"

namespace switchyard {
namespace {

class LocalChat : public ChatBackend {
 public:
  LocalChat(const serve::ServedModel& model, texts::Inbox& inbox) : model_(model), inbox_(inbox) {}

  void ask(const ChatJson& body, const std::function<void(const ChatJson& event)>& on_event,
           const std::function<bool()>& goes_on) override {
    try {
      if (body.contains("prompt")) {
        serve::CompletionRequest request = completion_of(body);
        serve::CompletionAnswer answer(request, model_, "chat", std::time(nullptr));
        stream(request.texts, answer, on_event, goes_on);
      } else {
        serve::ChatRequest request = chat_of(body);
        serve::ChatAnswer answer(request, model_, "chat", std::time(nullptr));
        stream(request.texts, answer, on_event, goes_on);
      }
    } catch (const serve::BadRequest& error) {
      on_event({{"error", {{"message", error.what()}}}});
    }
  }

  AnsweringModel model(const std::string&) override {
    return {model_.name, model_.capacity, model_.chat != nullptr};
  }

  // Reads a request of one letter. Where that alone is refused, the fields are not to blame.
  std::string problem_of(const ChatJson& fields) override {
    const std::string problem = problem_of_letter(fields);
    return problem.empty() || !problem_of_letter(ChatJson::object()).empty() ? "" : problem;
  }

  std::int64_t count_tokens(const ChatJson& body) override {
    try {
      const auto prompt = body.find("prompt");
      return std::ssize(prompt != body.end() ? encode_prompt(*model_.tokenizer, prompt->get<std::string>(),
                                                             model_.add_bos, model_.add_eos)
                                             : serve::prompt_of_chat(body, model_, serve::kNobody).tokens);
    } catch (const serve::BadRequest& error) {
      fail_runtime("[chat] {}", error.what());
    }
  }

 private:
  static constexpr double kLookSeconds = 0.1;  // between two looks whether the answer is still wanted

  serve::CompletionRequest completion_of(const ChatJson& body) const {
    return serve::parse_completion(body.dump(-1, ' ', false, ChatJson::error_handler_t::replace), model_,
                                   std::random_device()(), serve::kNobody);
  }
  serve::ChatRequest chat_of(const ChatJson& body) const {
    serve::ChatRequest request = serve::parse_chat(body, model_, std::random_device()(), serve::kNobody);
    if (!request.ignored.empty())
      throw serve::BadRequest(request.ignored[0], fmt::format("{}: no field of a chat", request.ignored[0]));
    return request;
  }
  std::string problem_of_letter(ChatJson body) const {
    try {
      if (model_.chat == nullptr) {
        body["prompt"] = "x";
        completion_of(body);
      } else {
        body["messages"] = ChatJson::array({{{"role", "user"}, {"content", "x"}}});
        chat_of(body);
      }
    } catch (const serve::BadRequest& error) {
      return error.what();
    }
    return "";
  }

  void stream(std::vector<texts::TextRequest>& requests, serve::ProtocolAnswer& answer,
              const std::function<void(const ChatJson& event)>& on_event,
              const std::function<bool()>& goes_on) {
    const auto pieces = std::make_shared<texts::Pieces>();
    std::vector<texts::WantedText> texts;
    for (texts::TextRequest& text : requests) texts.push_back({std::move(text), pieces});
    if (inbox_.submit(std::move(texts)) != texts::Inbox::Submitted::yes)
      fail_runtime("[chat] the model has stopped");
    EventReader events;
    events.add(answer.begin(), on_event);
    while (!answer.is_finished()) {
      for (const texts::Piece& piece : pieces->take(kLookSeconds)) events.add(answer.add(piece), on_event);
      if (answer.is_abandoned()) fail_runtime("[chat] the model has stopped");
      if (!goes_on()) {
        pieces->abandon();
        return;
      }
    }
    events.add(answer.end(), on_event);
  }

  const serve::ServedModel& model_;
  texts::Inbox& inbox_;
};

}  // namespace

std::unique_ptr<ChatBackend> local_chat(const serve::ServedModel& model, texts::Inbox& inbox) {
  return std::make_unique<LocalChat>(model, inbox);
}

}  // namespace switchyard

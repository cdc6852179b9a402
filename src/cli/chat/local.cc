#include "cli/chat/local.h"

#include <ctime>
#include <random>

#include "core/error.h"
#include "serve/protocol/chat_answer.h"
#include "serve/protocol/chat_request.h"

namespace switchyard {
namespace {

class LocalChat : public ChatBackend {
 public:
  LocalChat(const serve::ServedModel& model, texts::Inbox& inbox) : model_(model), inbox_(inbox) {}

  void ask(const ChatJson& body, const std::function<void(const ChatJson& event)>& on_event,
           const std::function<bool()>& goes_on) override {
    std::optional<serve::ChatRequest> request;
    try {
      request = serve::parse_chat(body, model_, std::random_device()(), serve::kNobody);
    } catch (const serve::BadRequest& error) {
      on_event({{"error", {{"message", error.what()}}}});
      return;
    }
    if (!request->ignored.empty()) {
      on_event({{"error", {{"message", fmt::format("{}: no field of a chat", request->ignored[0])}}}});
      return;
    }
    const auto pieces = std::make_shared<texts::Pieces>();
    serve::ChatAnswer answer(*request, model_, "chat", std::time(nullptr));
    std::vector<texts::WantedText> texts;
    for (texts::TextRequest& text : request->texts) texts.push_back({std::move(text), pieces});
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

  std::int64_t count_tokens(const ChatJson& body) override {
    try {
      return std::ssize(serve::prompt_of_chat(body, model_, serve::kNobody).tokens);
    } catch (const serve::BadRequest& error) {
      fail_runtime("[chat] {}", error.what());
    }
  }

 private:
  static constexpr double kLookSeconds = 0.1;  // between two looks whether the answer is still wanted

  const serve::ServedModel& model_;
  texts::Inbox& inbox_;
};

}  // namespace

std::unique_ptr<ChatBackend> local_chat(const serve::ServedModel& model, texts::Inbox& inbox) {
  return std::make_unique<LocalChat>(model, inbox);
}

}  // namespace switchyard

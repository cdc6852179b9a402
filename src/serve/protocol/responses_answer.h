// The answer of POST /v1/responses: one response, or a stream of events that build it.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "serve/protocol/answer.h"
#include "serve/protocol/chat_message.h"
#include "serve/protocol/responses_request.h"

namespace switchyard::serve {

class ResponsesAnswer : public ProtocolAnswer {
 public:
  // Takes a whole response and its output, to remember them.
  using Keep = std::function<void(const std::string& response, const chat::Json& output)>;

  // `chat` has one text and was made from `request`. `model` must outlive the answer. `keep` may be empty.
  ResponsesAnswer(const ChatRequest& chat, const ResponsesRequest& request, const ServedModel& model,
                  std::int64_t created, Keep keep);

  bool is_stream() const override { return stream_; }
  std::string begin() override;
  std::string add(const Piece& piece) override;
  std::string end() override;
  int status() const override { return failed_ ? 500 : 200; }

 private:
  using Kind = chat::Delta::Kind;
  // Each returns the events that tell of it: none where the answer is no stream.
  std::string add(chat::Delta delta);
  std::string open_item(const chat::Delta& delta);
  std::string close_item(const char* status);
  std::string event(const char* type, chat::Json fields);

  chat::Json place() const;  // of the last item
  chat::Json text_part(const std::string& text) const;
  chat::Json log_prob(const TokenLogProb& token) const;
  chat::Json usage() const;
  chat::Json response(const char* status) const;

  const ServedModel& model_;
  const bool stream_, shows_reasoning_, seals_reasoning_;
  const chat::Format format_;
  const CacheDomain domain_;
  const std::vector<std::int32_t> prompt_;
  const std::int64_t created_;
  const chat::Json shown_;
  const std::string id_;
  const Keep keep_;
  ItemIds ids_;
  ChatMessage message_;
  chat::Json output_ = chat::Json::array();
  Kind kind_ = Kind::content;                           // of the last item
  bool open_ = false;                                   // the last item goes on
  std::string text_;                                    // of the last item
  chat::Json log_probs_ = chat::Json::array();          // of the last item's text
  chat::Json waiting_log_probs_ = chat::Json::array();  // of tokens whose text has not come
  std::int64_t events_ = 0;
  ChatTokens tokens_;
  std::mt19937_64 random_{std::random_device{}()};
  bool failed_ = false;
};

}  // namespace switchyard::serve

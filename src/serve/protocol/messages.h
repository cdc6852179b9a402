// The answer of POST /v1/messages, in the form of Anthropic's API: a second protocol over the chat's parts.
// The answer's changes become blocks (requests: messages_request.h).
#pragma once

#include <random>
#include <string>
#include <vector>

#include "serve/protocol/answer.h"
#include "serve/protocol/chat_message.h"
#include "serve/protocol/chat_request.h"

namespace switchyard::serve {

// The code of an error by which Anthropic's clients know that they must send whole conversations.
inline constexpr const char* kNoThreads = "thread_unsupported_request";

// Returns the body of an error.
std::string messages_error(int status, const std::string& message, const std::string& code = "");

class MessagesAnswer : public ProtocolAnswer {
 public:
  // `request` has one text.
  MessagesAnswer(const ChatRequest& request, const ServedModel& model, const std::string& id);

  bool is_stream() const override { return stream_; }
  std::string begin() override;
  std::string add(const Piece& piece) override;
  std::string end() override;
  int status() const override { return failed_ ? 500 : 200; }

 private:
  // A part of the answer: thinking, text, or a tool's use.
  struct Block {
    chat::Delta::Kind kind;
    std::string text, id, name;
  };
  std::string add(chat::Delta delta);
  std::string close_block() const;
  chat::Json usage() const;
  const char* stop_reason() const;

  const std::string id_, model_;
  const bool stream_, shows_reasoning_;
  const chat::Format format_;
  const CacheDomain domain_;
  const std::vector<std::int32_t> prompt_;
  const std::shared_ptr<TokenMemory> memory_;
  ChatMessage message_;
  std::vector<Block> blocks_;
  std::string stop_word_, problem_;
  ChatTokens tokens_;
  std::mt19937_64 random_{std::random_device{}()};
  bool failed_ = false;
};

}  // namespace switchyard::serve

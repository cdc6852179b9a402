// The answer of POST /v1/chat/completions: one chat.completion, or a stream of chat.completion.chunk.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "serve/protocol/answer.h"
#include "serve/protocol/chat_message.h"
#include "serve/protocol/chat_request.h"

namespace switchyard::serve {

class ChatAnswer : public ProtocolAnswer {
 public:
  // `model` must outlive the answer.
  ChatAnswer(const ChatRequest& request, const ServedModel& model, const std::string& id,
             std::int64_t created);

  bool is_stream() const override { return stream_; }
  std::string begin() override;
  std::string add(const Piece& piece) override;
  std::string end() override;
  int status() const override { return failed_ ? 500 : 200; }

 private:
  chat::Json event(std::size_t choice, chat::Json delta) const;
  std::string text_of(chat::Json event) const;
  chat::Json log_prob(const TokenLogProb& token) const;
  chat::Json usage() const;
  chat::Json message_json(const ChatMessage& message) const;

  const ServedModel& model_;
  chat::Json frame_;  // fields that all events have in common
  bool stream_, usage_at_end_, usage_in_all_, shows_reasoning_, with_log_probs_, with_token_ids_;
  chat::Format format_;
  CacheDomain domain_;
  std::vector<std::int32_t> prompt_;
  std::vector<ChatMessage> messages_;                 // by choice
  std::vector<chat::Json> log_probs_;                 // by choice
  std::vector<std::vector<std::int32_t>> token_ids_;  // by choice, where the request wants them
  std::vector<std::string> routing_;                  // likewise, in base64
  ChatTokens tokens_;
  std::mt19937_64 random_{std::random_device{}()};
  bool failed_ = false;
};

// Returns the text of a token as log probabilities name it: its bytes as \xNN where it is no whole character.
std::string shown_token(const Tokenizer& tokenizer, std::int32_t id);
// Returns the bytes that a token adds to a text; of a special token those of its name.
std::string bytes_of_token(const Tokenizer& tokenizer, std::int32_t id);

}  // namespace switchyard::serve

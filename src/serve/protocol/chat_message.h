// ChatMessage: the answer of one choice as far as it has come, whatever the protocol that tells it.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "chat/answer_parser.h"
#include "serve/texts.h"

namespace switchyard::serve {

struct ChatMessage {
  struct Call {
    std::string id, name, arguments;
  };
  std::string content, reasoning;
  std::vector<Call> calls;
  std::optional<Finish> finish;
  std::string problem;
  std::vector<std::int32_t> made;  // its tokens

  // Takes a change. A call without an id gets one in the style of `format`, in `delta`, too.
  void apply(chat::Delta& delta, chat::Format format, std::mt19937_64& random);
  bool ends_with_calls() const { return !calls.empty() && finish == Finish::stop; }
};

// Tokens of all choices of an answer.
struct ChatTokens {
  std::int64_t prompt = 0, cached = 0, made = 0, reasoning = 0;
};

}  // namespace switchyard::serve

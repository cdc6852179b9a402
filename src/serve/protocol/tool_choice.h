// tool_choice: which tools a chat's answer may, or must, call.
#pragma once

#include <string>
#include <vector>

#include "chat/answer_parser.h"

namespace switchyard::serve {

struct ToolChoice {
  enum class Mode { none, automatic, required };
  Mode mode = Mode::automatic;
  chat::Json tools = nullptr;  // those that may be called: a list as the request has it, or null for none
  bool restricted = false;     // fewer than the request's: calls of others must be impossible
};

// Reads `tools` and `tool_choice` of a request's body. BadRequest.
ToolChoice tool_choice_of(const chat::Json& body);

}  // namespace switchyard::serve

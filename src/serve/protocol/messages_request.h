// From a request of Anthropic's Messages API to the chat that it asks for. docs/http.md lists the fields.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "serve/protocol/chat_request.h"

namespace switchyard::serve {

// The body of a chat, and how its places are named in the request that it was made of: pairs of both, such as
// messages[2] and messages[1].content[0]. What is in neither has the same name in both.
struct MessagesChat {
  chat::Json body = chat::Json::object();
  std::vector<std::pair<std::string, std::string>> places = {};
};

// Fields of the other APIs, and what this one has and is not built here, are refused by name. `takes_effort`:
// the chat template reads reasoning_effort. BadRequest.
MessagesChat chat_of_messages(const chat::Json& body, bool takes_effort);

// Returns an error of the chat with the names of the request.
BadRequest in_words_of_messages(const BadRequest& error, const MessagesChat& chat);

// Reads a whole request: as parse_chat does, with errors in this API's words.
ChatRequest parse_messages(const chat::Json& body, const ServedModel& model, std::uint32_t own_seed,
                           std::int64_t key);

// Returns how many tokens the prompt of a request has. BadRequest.
std::size_t count_tokens_of_messages(chat::Json body, const ServedModel& model, std::int64_t key);

}  // namespace switchyard::serve

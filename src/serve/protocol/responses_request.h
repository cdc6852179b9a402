// POST /v1/responses, OpenAI's API beside the chat: from a request's body to the body of a chat.
// docs/http.md lists the fields.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "chat/answer_parser.h"
#include "serve/protocol/chat_request.h"
#include "serve/protocol/responses_items.h"

namespace switchyard::serve {

struct ResponsesRequest {
  chat::Json chat;                         // the body of the chat that it asks for
  std::vector<ChatFieldName> names;        // for errors
  std::vector<std::size_t> unsaid_strict;  // tools for which nothing says whether they are strict
  chat::Json shown;                        // the response as far as the request tells it, without its output
  std::string id;                          // of the response
  ItemIds ids;                             // for the items of its output
  StoredItems conversation;                // earlier items and the request's
  std::size_t input_begin = 0;             // of the request's items
  bool stores = true;
  bool seals_reasoning = false;  // items of reasoning have encrypted_content
};

// Reads a body. Earlier responses are looked for among those of `key`. `tail` ends all new ids. BadRequest.
ResponsesRequest read_responses(const chat::Json& body, StoredResponses& stored, StoredResponses::Key key,
                                const std::string& tail);

// Makes the chat's texts. Sets what `shown` has of the model. BadRequest by the
// request's own names of fields.
ChatRequest chat_of_responses(ResponsesRequest& request, const ServedModel& model, std::uint32_t own_seed,
                              std::int64_t key);

// Returns the number of tokens of the prompt. BadRequest.
std::size_t count_input_tokens(const ResponsesRequest& request, const ServedModel& model, std::int64_t key);

}  // namespace switchyard::serve

// The messages of Anthropic's Messages API, whose content is blocks, as messages of a chat.
#pragma once

#include <string>

#include "serve/protocol/messages_request.h"

namespace switchyard::serve {

// Returns a member that is there and not null, else null.
const chat::Json* member_of(const chat::Json& object, const char* name);
// Returns a member that is a text. BadRequest names path.name.
std::string text_member(const chat::Json& object, const char* name, const std::string& path);

// Adds `system` and `messages` of `body` to the chat. A last message of the assistant is one
// to go on with. BadRequest.
void add_messages(const chat::Json& body, MessagesChat& chat);

}  // namespace switchyard::serve

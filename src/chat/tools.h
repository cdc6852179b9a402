// The tools of a chat request.
#pragma once

#include <nlohmann/json.hpp>

#include "chat/bad_request.h"

namespace switchyard::chat {

using Json = nlohmann::ordered_json;

// Returns `tools` of a request's body as they were sent, null where there are none. BadRequest unless they
// are a list of up to 128 objects of type function, each with a name. Parameters must be an object
// where a function has them.
Json checked_tools(const Json& body);

// Returns the tools that the template is given: none where tool_choice is "none".
Json offered_tools(const Json& body);

}  // namespace switchyard::chat

// The tools of a chat request.
#pragma once

#include <nlohmann/json.hpp>

#include "chat/bad_request.h"

namespace switchyard::chat {

using Json = nlohmann::ordered_json;

// Returns `tools` of a request's body as they were sent, null where there are none. BadRequest for what is no
// list of up to 128 objects of type function, each with a name and, where it has them, an object of
// parameters.
Json checked_tools(const Json& body);

// Returns the tools that the template is given: none where tool_choice is "none".
Json offered_tools(const Json& body);

}  // namespace switchyard::chat

// A chat request's messages as a template takes them.
#pragma once

#include <nlohmann/json.hpp>

#include "chat/bad_request.h"

namespace switchyard::chat {

using Json = nlohmann::ordered_json;

// The forms of messages that a template takes; probes find them out.
struct TemplateTakes {
  bool parts = false;                  // content that is a list of parts; else the parts' texts are joined
  bool argument_objects = false;       // arguments of calls as objects; else as texts
  bool argument_texts = false;         // where it takes objects: a text that is none is shown, too
  bool calls_without_content = false;  // a message with calls needs content that is none to show them
  bool developer = false;              // the role developer; else it is system
};

// Returns `messages` of a request's body as the template takes them: null keys dropped, content always there,
// reasoning under the names that templates read. Unknown keys stay. BadRequest has the field's path.
Json template_messages(const Json& body, const TemplateTakes& takes);

}  // namespace switchyard::chat

// continue_final_message: the prompt ends where the final message's content ends, so that the answer goes on.
#pragma once

#include <string>
#include <string_view>

#include "chat/bad_request.h"
#include "chat/jinja/template.h"

namespace switchyard::chat {

// Puts a mark behind the final message's content and returns that content. BadRequest where there is no text
// to continue, or the template does not read it.
std::string mark_final_message(jinja::Json& messages, std::string_view template_text);

// Cuts the prompt at the mark; without white space before it where the template took the message's away.
// BadRequest where the message is not in the prompt.
void cut_after_final_message(jinja::Rendered& rendered, std::string_view final_text);

}  // namespace switchyard::chat

// Refuses, by name, parts of a request that the prompt does not show.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "chat/bad_request.h"

namespace switchyard::chat {

using Json = nlohmann::ordered_json;

// The parts that a template is known to show, by trial renderings. False: each request is tried.
struct TemplateShows {
  bool tools = false, calls = false, results = false, system = false;
};

// Renders what the template is given otherwise; none where the template fails.
using RenderAgain = std::function<std::optional<std::string>(const Json& given)>;

// `given`: what the template was given (`messages`, `tools`, `documents`, …); `prompt`: what it made of it.
// A part counts as shown where the template is known to show such parts and the prompt has its text, or where
// the prompt would be another one without it. BadRequest names tools, documents, tool_calls, or a message of
// the roles system, developer or tool.
void refuse_what_is_not_shown(const Json& given, const std::string& prompt, const TemplateShows& shows,
                              const RenderAgain& render);

}  // namespace switchyard::chat

// A chat that is answered whole, without HTTP.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "serve/served_model.h"
#include "texts/generate.h"

namespace switchyard::serve {

using MakeTexts = std::function<std::vector<GeneratedText>(const std::vector<texts::TextRequest>&)>;

// Returns the answer's body to a body of POST /v1/chat/completions. `ends` end a text beside the request's
// own; draws have seed 0 where the request names none. BadRequest; Error(usage) for stream, for logprobs and
// for an unknown field.
std::string whole_chat(const std::string& request, const ServedModel& model,
                       const std::vector<std::int32_t>& ends, const MakeTexts& make);

}  // namespace switchyard::serve

// POST /tokenize, /detokenize and /apply-template: a model's tokens and prompts as other servers give them,
// under the names of llama.cpp and of vLLM.
#pragma once

#include <string>

#include "serve/protocol/chat_request.h"

namespace switchyard::serve {

// Each takes a request's body, and the key of whoever asks (CacheDomain),
// and returns the answer's. BadRequest.
std::string tokenize(const std::string& body, const ServedModel& model, std::int64_t key);
std::string detokenize(const std::string& body, const ServedModel& model);
std::string apply_template(const std::string& body, const ServedModel& model, std::int64_t key);

}  // namespace switchyard::serve

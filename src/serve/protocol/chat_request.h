// POST /v1/chat/completions, as of OpenAI's API and of what vLLM and llama.cpp add to it: from a request's
// body to texts. docs/http.md lists the fields.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "serve/protocol/fields.h"
#include "serve/served_model.h"
#include "serve/texts.h"

namespace switchyard::serve {

struct ChatRequest {
  std::vector<TextRequest> texts;  // by choice
  std::int64_t prompt_tokens = 0;
  bool stream = false;
  bool usage_at_end = false;    // of a stream
  bool usage_in_all = false;    // of a stream: every event says how many tokens there are
  bool shows_reasoning = true;  // false: reasoning is made and counted, not sent
  bool log_probs = false;
  chat::Format format = chat::Format::none;
  std::vector<std::string> ignored = {};  // names of fields that are not known
};

// A chat's prompt, as text and tokens.
struct ChatPrompt {
  chat::Prompt rendered;
  std::vector<std::int32_t> tokens;
  CacheDomain domain = {};
  std::shared_ptr<const TextAdapter> adapter = {};
};

// Parses a body in the order of its keys, at most 100 levels deep. BadRequest.
chat::Json parse_chat_body(const std::string& body);

// Reads `messages` and what else shapes the prompt. `key`: of whoever asks (CacheDomain). BadRequest, also
// where the model has no chat template.
ChatPrompt prompt_of_chat(const chat::Json& body, const ServedModel& model, std::int64_t key);

// Reads a whole request. Draws follow `own_seed` where the request has no seed. BadRequest.
ChatRequest parse_chat(const chat::Json& body, const ServedModel& model, std::uint32_t own_seed,
                       std::int64_t key);

}  // namespace switchyard::serve

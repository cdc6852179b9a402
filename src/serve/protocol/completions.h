// POST /v1/completions, as of OpenAI's API: from a request's body to texts, and from their pieces to the
// answer's bytes. docs/http.md lists the fields.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "serve/protocol/answer.h"
#include "serve/protocol/fields.h"
#include "serve/served_model.h"
#include "serve/texts.h"

namespace switchyard::serve {

struct CompletionRequest {
  std::vector<TextRequest> texts;   // by choice
  std::vector<std::string> echoed;  // for each text what the answer begins with: its prompt, or nothing
  std::int64_t prompt_tokens = 0;
  bool stream = false;
  bool usage_at_end = false;  // of a stream
};

// Parses a body. BadRequest. Draws follow `own_seed` where the request has no seed. `key`: of whoever asks.
CompletionRequest parse_completion(const std::string& body, const ServedModel& model, std::uint32_t own_seed,
                                   std::int64_t key);

class CompletionAnswer final : public ProtocolAnswer {
 public:
  CompletionAnswer(const CompletionRequest& request, const ServedModel& model, const std::string& id,
                   std::int64_t created);

  bool is_stream() const override { return stream_; }
  std::string begin() override;
  std::string add(const Piece& piece) override;
  std::string end() override;

 private:
  struct Choice {
    std::string text;
    nlohmann::json log_probs;
    std::string finish;
    std::int64_t echoed;                                    // characters before the new text
    std::string problem = {};                               // of a text that failed
    std::vector<std::int32_t> prompt = {}, token_ids = {};  // where the request wants them
    std::string routing = {};                               // likewise, in base64
  };
  nlohmann::json event(std::size_t choice, const std::string& text) const;
  nlohmann::json usage() const;

  nlohmann::json frame_;  // fields that all events have in common
  bool stream_, usage_at_end_, with_log_probs_, with_token_ids_;
  std::vector<Choice> choices_;
  std::int64_t prompt_tokens_, new_tokens_ = 0;
};

}  // namespace switchyard::serve

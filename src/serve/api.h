// The requests and answers of `serve`, as of OpenAI's completions: what of them is understood is in
// docs/formats.md.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "serve/completion.h"
#include "tokenizer/tokenizer.h"

namespace switchyard::serve {

struct ServedModel {
  std::string name;
  const Tokenizer* tokenizer;
  std::int64_t vocab = 0;     // of the model
  std::int64_t capacity = 0;  // tokens of a prompt and what comes after it
  bool add_bos = false;       // before prompts that are texts
  bool add_eos = false;       // behind them, where the tokenizer ends prompts
  SamplingConfig sampling = {};
  std::int64_t most_texts = 128;  // of a request
};

struct CompletionRequest {
  std::vector<TextRequest> texts;   // choice after choice
  std::vector<std::string> echoed;  // of each text what comes before it: its prompt or nothing
  std::int64_t prompt_tokens = 0;
  bool stream = false;
  bool usage_at_end = false;  // of a stream
};

// What is wrong with a request, in one line; `field` is empty where it is not of one.
struct BadRequest : std::runtime_error {
  BadRequest(const std::string& field_, const std::string& message)
      : std::runtime_error(message), field(field_) {}
  std::string field;
};

// The body of a POST to /v1/completions. BadRequest. Draws follow `own_seed` where it names no seed.
CompletionRequest parse_completion(const std::string& body, const ServedModel& model, std::uint32_t own_seed);

// The answer, which grows with the pieces of its texts.
class CompletionAnswer {
 public:
  CompletionAnswer(const CompletionRequest& request, const ServedModel& model, const std::string& id,
                   std::int64_t created);

  // The texts' part of a stream that a piece makes; null where it has nothing new to see.
  nlohmann::json add(const Piece& piece);
  // The beginnings of echoed texts, for a stream.
  std::vector<nlohmann::json> beginnings() const;
  bool is_finished() const { return unfinished_ == 0; }
  bool is_abandoned() const { return abandoned_; }  // a text was ended by the server
  nlohmann::json whole() const;
  nlohmann::json usage() const;  // as the end of a stream

 private:
  struct Choice {
    std::string text;
    nlohmann::json log_probs;
    std::string finish;
    std::int64_t echoed;       // characters that come before the new text
    std::string problem = {};  // of a text that failed
  };
  nlohmann::json of_stream(std::size_t choice, const std::string& text) const;
  nlohmann::json counts() const;

  nlohmann::json frame_;  // what all parts have in common
  bool with_log_probs_;
  std::vector<Choice> choices_;
  std::size_t unfinished_;
  std::int64_t prompt_tokens_, new_tokens_ = 0;
  bool abandoned_ = false;
};

nlohmann::json error_json(const std::string& message, const std::string& type, const std::string& field,
                          const std::string& code = "");

}  // namespace switchyard::serve

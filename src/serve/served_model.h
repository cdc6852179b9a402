// The served model, as the protocols know it.
#pragma once

#include <cstdint>
#include <string>

#include "generate/sampling.h"
#include "tokenizer/tokenizer.h"

namespace switchyard::serve {

struct ServedModel {
  std::string name;
  const Tokenizer* tokenizer;
  std::int64_t vocab = 0;         // of the model; the tokenizer may have fewer ids
  std::int64_t capacity = 0;      // most tokens of a prompt and its text together
  bool add_bos = false;           // before prompts that are texts
  bool add_eos = false;           // behind them, where the tokenizer ends prompts
  SamplingConfig sampling = {};   // where a request does not say
  std::int64_t most_texts = 128;  // of one request
};

}  // namespace switchyard::serve

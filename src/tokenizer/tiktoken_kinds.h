// Facts that a file of base64 tokens and ranks does not state: how a text is split, and the special tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/config_tokens.h"

namespace switchyard {

struct TiktokenKind {
  std::string_view pattern;
  std::int32_t ids = 0;  // with special tokens
  std::optional<std::int32_t> bos = {}, eos = {};
  std::vector<ConfigToken> special = {};  // each with its id, as the published tokenizers have them
  bool composed = false;             // text is brought to NFC first
  bool found_in_texts = false;       // special tokens are looked for in every text
  bool guessed = false;              // nothing says that the rule is this one
};

// Finds the kind of a file with `ranks` tokens, the highest rank of which is `highest`. A file named
// tiktoken.model, or with Kimi's tokenizer_class in its tokenizer_config.json (`settings`), is Kimi's: 256 special
// tokens follow the ranks, with the names of added_tokens_decoder or <|reserved_token_ID|>. Others are recognised by
// their number of ranks: GPT-2's, cl100k, o200k, Qwen's, Llama 3's. Any other *.tiktoken file is taken for a vocabulary
// of Llama 3's kind. Error(usage) for any other *.model file, and for settings that do not fit.
TiktokenKind tiktoken_kind_of(std::size_t ranks, std::int32_t highest, const JsonReader& settings,
                              const std::string& name);

}  // namespace switchyard

// Reads the tokens that a tokenizer_config.json names.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tokenizer/json_reader.h"

namespace switchyard {

struct ConfigToken {
  std::string content;
  std::optional<std::int32_t> id;  // if the file states one
  bool special = true, normalized = false;
  bool left_strip = false, right_strip = false, single_word = false;
};

// The tokens in the order in which transformers adds those that the vocabulary lacks: added_tokens_decoder by
// id, then tokens with a role (eos_token, ...), then additional_special_tokens. Each content once.
std::vector<ConfigToken> tokens_of_config(const JsonReader& settings);

// The content of bos_token, eos_token, ...: a text, or an object that holds it. Nothing without the key.
std::optional<std::string> named_token(const JsonReader& settings, const char* key);

}  // namespace switchyard

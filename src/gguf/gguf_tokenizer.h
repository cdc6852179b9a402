// The tokenizer in a GGUF file's metadata, as the files that others would publish it in.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gguf/gguf_file.h"

namespace switchyard {

struct TokenizerFiles {
  std::string json;    // contents of tokenizer.json (byte-level BPE), or "" where there is a
  std::string model;   // SentencePiece model (tokenizer.model)
  std::string config;  // contents of tokenizer_config.json: first and last token of a document, chat template
};

// Error(usage) naming the key for a kind of tokenizer, or a rule of splitting text, that is not known here,
// and for lists that do not fit each other.
TokenizerFiles tokenizer_files_of(const GgufFile& file);

// The tokens that end a text, ascending: those of the keys eos_token_id, eot_token_id and eom_token_id, of
// lists of such tokens, and those that are known by their names, as <|im_end|>. Error(usage) naming the key.
std::vector<std::int64_t> end_tokens_of(const GgufFile& file);

}  // namespace switchyard

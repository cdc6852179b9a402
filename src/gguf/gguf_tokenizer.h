// Converts the tokenizer in a GGUF file's metadata to the files of other publishers' formats.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gguf/gguf_file.h"

namespace switchyard {

struct TokenizerFiles {
  std::string json;    // contents of tokenizer.json (byte-level BPE), or "" where there is a
  std::string model;   // SentencePiece model (tokenizer.model)
  std::string config;  // contents of tokenizer_config.json: a document's first and last token, chat template
};

// Error(usage) naming the key for an unknown kind of tokenizer or of text splitting, and for lists whose
// lengths do not match.
TokenizerFiles tokenizer_files_of(const GgufFile& file);

// The tokens that end a text, ascending: the ids under eos_token_id, eot_token_id and eom_token_id, and under
// lists of such tokens, and tokens with a well-known name such as <|im_end|>. Error(usage) naming the key.
std::vector<std::int64_t> end_tokens_of(const GgufFile& file);

}  // namespace switchyard

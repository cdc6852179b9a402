// longest_token: the most text that one token may represent, so that a prompt that cannot fit is refused
// before it is rendered and encoded.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tokenizer/tokenizer.h"

namespace switchyard::serve {

// Returns the most bytes of text that one token represents, including what the tokenizer may shorten before
// it looks for tokens; 0 if there is no such number: the tokenizer drops characters, or has one
// token for any unknown text.
std::size_t longest_token_bytes(const Tokenizer& tokenizer, std::int64_t vocab);

}  // namespace switchyard::serve

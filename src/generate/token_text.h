// TokenText: the text of tokens that come one by one.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace switchyard {

// Returns the size of a decoded text without an incomplete character at its end.
std::size_t whole_characters(const std::string& text);

class TokenText {
 public:
  // Begins after the tokens `before`; where those end within a character, the text begins with that
  // character. `keep_special`: special tokens give their text, too. The tokenizer must outlive the object.
  TokenText(const Tokenizer& tokenizer, std::span<const std::int32_t> before, bool keep_special = false);

  // Returns the text that the token completes: a token may end within a character, or need the next one.
  std::string add(std::int32_t token);
  // Returns the rest when no token follows.
  std::string finish() const;

 private:
  std::string decode() const;

  const Tokenizer& tokenizer_;
  bool keep_special_;
  std::vector<std::int32_t> window_;  // tokens whose text was given last, and those after them
  std::size_t seen_ = 0;              // how many of them have no text to give any more
  std::size_t given_ = 0;             // bytes of the window's text
  std::size_t begun_ = 0;             // bytes behind them of a character that the tokens before begin
};

// Returns the text of a token within a text, with the space that a tokenizer omits at a text's beginning.
// Texts of successive tokens join to the whole text, but a character of several tokens gives U+FFFD.
std::string text_within(const Tokenizer& tokenizer, std::int32_t token);

}  // namespace switchyard

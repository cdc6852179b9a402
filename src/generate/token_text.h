// The text of tokens that come one by one.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace switchyard {

// The bytes of a decoded text without an unfinished character at its end, whose other bytes are to come.
std::size_t whole_characters(const std::string& text);

class TokenText {
 public:
  // The text after the tokens `before`; where those begin a character, that character is the first. The
  // tokenizer must outlive this object.
  TokenText(const Tokenizer& tokenizer, std::span<const std::int32_t> before);

  // The text that is whole now and was not before: a token may end within a character, or need the next one.
  std::string add(std::int32_t token);
  // What is left when no token follows.
  std::string finish() const;

 private:
  const Tokenizer& tokenizer_;
  std::vector<std::int32_t> window_;  // tokens whose text was given last, and those after them
  std::size_t seen_ = 0;              // how many of them have no text to give any more
  std::size_t given_ = 0;             // bytes of the window's text
  std::size_t begun_ = 0;             // bytes behind them of a character that the tokens before begin
};

// The text of a token within a text: with the space that a tokenizer leaves out where a text begins. What
// follows one another so is the text, but for characters of several tokens, which give U+FFFD.
std::string text_within(const Tokenizer& tokenizer, std::int32_t token);

}  // namespace switchyard

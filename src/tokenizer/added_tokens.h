// Added tokens of a tokenizer.json, which are found in a text before any other processing.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/text_range.h"

namespace switchyard {

struct AddedToken {
  std::int32_t id;
  std::string content;
  bool left_strip, right_strip, single_word;
};

// A part of a text: an added token, or other text with id -1.
struct AddedPart {
  std::size_t begin, end;
  std::int32_t id;
};

// Finds added tokens: the leftmost first, and the longest at one place. A token may include the white space
// around it, or may only match alone: with no letter, digit or mark beside it.
//
// A token of white space only, such as runs of spaces in tokenizers for code, is text like any other. All
// others are markup, and are not looked for in plain ranges: who wrote those must not write markup.
class AddedTokenFinder {
 public:
  void add(AddedToken token);
  // Cuts a valid text into its parts, in order, none empty. Markup that touches a byte of a range in `plain`
  // is other text.
  std::vector<AddedPart> cut(const std::string& text, std::span<const TextRange> plain = {}) const;
  // Returns places in a valid text, ascending, so that no markup that touches a range in `plain` is whole
  // between two of them: each is behind the first character of such an occurrence.
  std::vector<std::size_t> breaks(const std::string& text, std::span<const TextRange> plain) const;

 private:
  const AddedToken* match(const std::string& text, std::size_t at, std::span<const TextRange> plain) const;
  std::array<std::vector<AddedToken>, 256> by_first_byte_;
  std::string first_bytes_;  // first bytes of all tokens
};

}  // namespace switchyard

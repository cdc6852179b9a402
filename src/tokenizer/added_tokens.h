// Added tokens of a tokenizer.json, which are found in a text before any other processing.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

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
class AddedTokenFinder {
 public:
  void add(AddedToken token);
  // Cuts a valid text into its parts, in order, none empty.
  std::vector<AddedPart> cut(const std::string& text) const;

 private:
  const AddedToken* match(const std::string& text, std::size_t at) const;
  std::array<std::vector<AddedToken>, 256> by_first_byte_;
  std::string first_bytes_;  // first bytes of all tokens
};

}  // namespace switchyard

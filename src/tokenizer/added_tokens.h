// Tokens of a tokenizer.json that are found in a text before anything else is done with it.
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

// A part of a text: an added token, or with id -1 what is none.
struct AddedPart {
  std::size_t begin, end;
  std::int32_t id;
};

// Finds added tokens: the leftmost, and of several there the longest. A token may take the white space around
// it, and may stand alone only: with no letter, digit or mark beside it.
class AddedTokenFinder {
 public:
  void add(AddedToken token);
  // The parts of a valid text in order, none empty.
  std::vector<AddedPart> cut(const std::string& text) const;

 private:
  const AddedToken* match(const std::string& text, std::size_t at) const;
  std::array<std::vector<AddedToken>, 256> by_first_byte_;
  std::string first_bytes_;  // those that any token begins with
};

}  // namespace switchyard

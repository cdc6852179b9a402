// StopText: ends a text before the first of some words.
#pragma once

#include <string>
#include <vector>

namespace switchyard::texts {

class StopText {
 public:
  explicit StopText(std::vector<std::string> words);  // none empty

  // Appends `added` to the text and returns what may be given away: what may be the beginning of a word is
  // held back, and nothing is given from a word on.
  std::string add(const std::string& added);
  // Returns what was held back, when no more is added.
  std::string finish();
  bool found() const { return found_; }
  // Returns the word that was found, or an empty text.
  const std::string& found_word() const { return found_word_; }

 private:
  std::vector<std::string> words_;
  std::string held_back_, found_word_;
  bool found_ = false;
};

}  // namespace switchyard::texts

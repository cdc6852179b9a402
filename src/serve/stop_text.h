// Where a text ends that must not contain certain words.
#pragma once

#include <string>
#include <vector>

namespace switchyard::serve {

class StopText {
 public:
  explicit StopText(std::vector<std::string> words);  // none empty

  // What of the text so far and `added` can be given away: what may be the beginning of a word is kept, and
  // from a word on nothing is given.
  std::string add(const std::string& added);
  // What was kept, when no more is added.
  std::string finish();
  bool found() const { return found_; }

 private:
  std::vector<std::string> words_;
  std::string kept_;
  bool found_ = false;
};

}  // namespace switchyard::serve

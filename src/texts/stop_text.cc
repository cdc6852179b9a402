#include "texts/stop_text.h"

#include <algorithm>
#include <utility>

namespace switchyard::texts {
namespace {

// Returns the length of the longest end of `text` with which `word` begins.
std::size_t begun(const std::string& text, const std::string& word) {
  std::size_t size = std::min(text.size(), word.size() - 1);
  while (size > 0 && text.compare(text.size() - size, size, word, 0, size) != 0) --size;
  return size;
}

}  // namespace

StopText::StopText(std::vector<std::string> words) : words_(std::move(words)) {}

std::string StopText::add(const std::string& added) {
  if (found_) return "";
  held_back_ += added;
  std::size_t first = std::string::npos, keep = 0;
  for (const std::string& word : words_) {
    if (const std::size_t at = held_back_.find(word); at < first) {
      first = at;
      found_word_ = word;
    }
    keep = std::max(keep, begun(held_back_, word));
  }
  found_ = first != std::string::npos;
  std::string given = held_back_.substr(0, found_ ? first : held_back_.size() - keep);
  held_back_.erase(0, found_ ? std::string::npos : given.size());
  return given;
}

std::string StopText::finish() {
  return std::exchange(held_back_, "");
}

}  // namespace switchyard::texts

// Tokens of a tokenizer.json that are found in a text before anything else is done with it.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace switchyard {

struct AddedToken {
  std::int32_t id;
  std::string content;
  bool special, left_strip, right_strip;
};

// Finds added tokens: the leftmost, and of several there the longest. A token may take the white space around
// it.
class AddedTokenFinder {
 public:
  void add(AddedToken token) {
    auto& list = by_first_byte_[static_cast<unsigned char>(token.content[0])];
    list.push_back(std::move(token));
    std::stable_sort(list.begin(), list.end(),
                     [](const auto& a, const auto& b) { return a.content.size() > b.content.size(); });
  }

  // Calls text(begin, end) and token(id) for the parts of `input` in order.
  template <typename Text, typename Token>
  void cut(const std::string& input, Text text, Token token) const {
    std::size_t begin = 0, at = 0;
    while (at < input.size()) {
      const AddedToken* found = match(input, at);
      if (found == nullptr) {
        ++at;
        continue;
      }
      std::size_t left = at, right = at + found->content.size();
      if (found->left_strip) {
        while (left > begin && space(input[left - 1])) --left;
      }
      if (found->right_strip) {
        while (right < input.size() && space(input[right])) ++right;
      }
      if (left > begin) text(begin, left);
      token(found->id);
      begin = at = right;
    }
    if (begin < input.size()) text(begin, input.size());
  }

 private:
  static bool space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
  const AddedToken* match(const std::string& input, std::size_t at) const {
    for (const AddedToken& token : by_first_byte_[static_cast<unsigned char>(input[at])]) {
      if (input.compare(at, token.content.size(), token.content) == 0) return &token;
    }
    return nullptr;
  }
  std::array<std::vector<AddedToken>, 256> by_first_byte_;
};

}  // namespace switchyard

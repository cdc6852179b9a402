#include "tokenizer/added_tokens.h"

#include <algorithm>
#include <utility>

#include "tokenizer/plain_ranges.h"
#include "tokenizer/regex.h"
#include "tokenizer/unicode.h"

namespace switchyard {
namespace {

// The character that ends before `end`.
std::string_view character_before(std::string_view text, std::size_t end) {
  std::size_t begin = end - 1;
  while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xc0u) == 0x80u) --begin;
  return text.substr(begin, end - begin);
}

bool is_word(std::string_view character) {
  static const Regex word(R"([[:word:]\x{200c}\x{200d}])", "added tokens");
  return !word.matches(character).empty();
}

bool stands_alone(std::string_view text, std::size_t begin, std::size_t end) {
  return (begin == 0 || !is_word(character_before(text, begin))) &&
         (end == text.size() || !is_word(text.substr(end, utf8_length(text, end))));
}

// Returns whether a character is white space, or the mark of a space in vocabularies.
bool is_blank(std::string_view content) {
  bool blank = true;
  for_characters(content, [&](std::string_view character) {
    blank = blank && (is_white_space(code_point(character)) || character == "\u2581");
  });
  return blank;
}

}  // namespace

void AddedTokenFinder::add(AddedToken token) {
  auto& list = by_first_byte_[static_cast<unsigned char>(token.content[0])];
  if (list.empty()) first_bytes_ += token.content[0];
  list.push_back(std::move(token));
  std::stable_sort(list.begin(), list.end(),
                   [](const auto& a, const auto& b) { return a.content.size() > b.content.size(); });
}

std::vector<AddedPart> AddedTokenFinder::cut(const std::string& text,
                                             std::span<const TextRange> plain) const {
  std::vector<AddedPart> parts;
  std::size_t done = 0;  // what parts cover; a token's white space may reach beyond `at`
  for (std::size_t at = text.find_first_of(first_bytes_); at < text.size();
       at = text.find_first_of(first_bytes_, at)) {
    const AddedToken* token = match(text, at, plain);
    if (token == nullptr) {
      ++at;
      continue;
    }
    std::size_t begin = at, end = at + token->content.size();
    at = end;
    if (token->single_word && !stands_alone(text, begin, end)) continue;
    while (token->left_strip && begin > done && is_white_space(code_point(character_before(text, begin))))
      begin -= character_before(text, begin).size();
    while (token->right_strip && end < text.size() &&
           is_white_space(code_point(std::string_view(text).substr(end))))
      end += utf8_length(text, end);
    if (begin > done) parts.push_back({done, begin, -1});
    parts.push_back({begin, end, token->id});
    done = end;
  }
  if (done < text.size()) parts.push_back({done, text.size(), -1});
  return parts;
}

std::vector<std::size_t> AddedTokenFinder::breaks(const std::string& text,
                                                  std::span<const TextRange> plain) const {
  std::vector<std::size_t> places;
  for (std::size_t at = text.find_first_of(first_bytes_); at < text.size();
       at = text.find_first_of(first_bytes_, at)) {
    std::size_t next = at + 1;
    for (const AddedToken& token : by_first_byte_[static_cast<unsigned char>(text[at])]) {
      if (text.compare(at, token.content.size(), token.content) != 0 || is_blank(token.content) ||
          !touches(plain, at, at + token.content.size()))
        continue;
      next = at + utf8_length(text, at);
      if (next < at + token.content.size()) places.push_back(next);  // one character cannot be broken
      break;
    }
    at = next;
  }
  return places;
}

const AddedToken* AddedTokenFinder::match(const std::string& text, std::size_t at,
                                          std::span<const TextRange> plain) const {
  for (const AddedToken& token : by_first_byte_[static_cast<unsigned char>(text[at])]) {
    if (text.compare(at, token.content.size(), token.content) != 0) continue;
    if (!touches(plain, at, at + token.content.size()) || is_blank(token.content)) return &token;
  }
  return nullptr;
}

}  // namespace switchyard

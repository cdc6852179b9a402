// Unicode regular expressions, by PCRE2, and the little UTF-8 that tokenizers need.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace switchyard {

// A compiled pattern; classes such as \s and \p{L} are Unicode's. Immutable, usable from several threads.
class Regex {
 public:
  // Error(usage) naming `where` for a pattern that does not compile.
  Regex(const std::string& pattern, const std::string& where);

  // [begin, end) of all matches from left to right. `text` must be valid UTF-8. Empty matches are left out.
  // Error(runtime) when matching takes unreasonably long, which only a hostile pattern brings about.
  std::vector<std::pair<std::size_t, std::size_t>> matches(std::string_view text) const;

 private:
  struct Code;
  std::shared_ptr<const Code> code_;
};

// Bytes in the UTF-8 character that begins at text[at]; 0 if there is none (broken, overlong, a surrogate,
// cut off).
std::size_t utf8_length(std::string_view text, std::size_t at);

// The text with each byte that belongs to no character replaced by U+FFFD.
std::string valid_utf8(std::string_view text);

// UTF-8 of a code point up to U+10FFFF.
std::string utf8_of(std::uint32_t code_point);

}  // namespace switchyard

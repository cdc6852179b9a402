// Regular expressions of tokenizers, implemented by PCRE2.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace switchyard {

// A compiled pattern with the semantics of tokenizers' usual regular expressions (Oniguruma, Rust): \s is the
// property White_Space, \w Alphabetic, marks, decimal digits and connectors, \p{Han} the script itself.
// Immutable, usable from several threads.
class Regex {
 public:
  // Selects the positions that ^ and $ match: the ends of the whole text, or of every line.
  enum class Anchors { text, lines };
  // Error(usage) naming `where` for a pattern that does not compile, and for sets inside sets ([a&&[b]]).
  Regex(const std::string& pattern, const std::string& where, Anchors anchors = Anchors::lines);

  // Returns [begin, end) of all matches from left to right, without empty ones. `text` must be valid UTF-8.
  // Error(runtime) when matching takes unreasonably long, which only a hostile pattern causes.
  std::vector<std::pair<std::size_t, std::size_t>> matches(std::string_view text) const;

 private:
  struct Code;
  std::shared_ptr<const Code> code_;
};

}  // namespace switchyard

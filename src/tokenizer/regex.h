// Regular expressions of tokenizers, implemented by PCRE2.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace switchyard {

// A compiled pattern in the syntax and with the meaning of the library tokenizers' engine, Oniguruma, down to its
// version of Unicode (pattern.h). Immutable, usable from several threads.
class Regex {
 public:
  // Selects the positions that ^ and $ match: the ends of the whole text, or of every line.
  enum class Anchors { text, lines };
  // Error(usage) naming `where` for a pattern that does not compile or is not understood.
  Regex(const std::string& pattern, const std::string& where, Anchors anchors = Anchors::lines);

  // Returns [begin, end) of all matches from left to right, with empty ones but where another match ends.
  // `text` must be valid UTF-8.
  // Error(runtime) when matching takes unreasonably long, which only a hostile pattern causes.
  std::vector<std::pair<std::size_t, std::size_t>> matches(std::string_view text) const;

 private:
  struct Code;
  std::shared_ptr<const Code> code_;
};

}  // namespace switchyard

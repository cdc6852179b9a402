// Text: UTF-8 bytes of which some ranges came from the foreign context.
// Python sees such bytes as a sequence of code points.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/text_range.h"

namespace switchyard::jinja {

struct Text {
  std::string bytes;
  std::vector<TextRange> foreign;  // in order, apart from each other
  bool is_markup = false;          // markup.h; a text that is made of others is plain

  Text() = default;
  explicit Text(std::string bytes_, bool is_foreign = false) : bytes(std::move(bytes_)) {
    if (is_foreign && !bytes.empty()) foreign.push_back({0, bytes.size()});
  }

  bool any_foreign() const { return !foreign.empty(); }
  std::size_t size() const { return bytes.size(); }
  // TemplateError of kind limit where the text would have more bytes than the budget.
  void append(std::string_view more, bool is_foreign = false);
  void append(const Text& other) { append(other, 0, other.size()); }
  void append(const Text& other, std::size_t begin, std::size_t end);
  Text part(std::size_t begin, std::size_t end) const;

 private:
  void mark(std::size_t begin, std::size_t end);
};

// The code point that begins at `at`, and where the next begins. A byte that is no UTF-8 counts as itself.
struct CodePoint {
  std::int32_t value;
  std::size_t next;
};
CodePoint code_point_at(std::string_view text, std::size_t at);
void append_code_point(std::string& out, std::int32_t value);
std::vector<std::int32_t> code_points(std::string_view text);
std::size_t count_code_points(std::string_view text);
// The place of each code point, and the end of the text.
std::vector<std::size_t> code_point_starts(std::string_view text);
// The byte where code point `index` begins; the text's size beyond the end.
std::size_t byte_of(std::string_view text, std::size_t index);
bool is_utf8(std::string_view text);

// Returns whether Python's str.isspace holds: Unicode's white space.
bool is_space(std::int32_t code_point);
bool is_line_end(std::int32_t code_point);
enum class Sides { left, right, both };
// The range that is left when code points of `characters` (white space without) are taken from the ends.
TextRange stripped(std::string_view text, Sides sides, const std::string_view* characters = nullptr);

// Unicode's full case mappings, with those of one to several code points.
std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string title(std::string_view text);  // str.title
std::string capitalized(std::string_view text);

}  // namespace switchyard::jinja

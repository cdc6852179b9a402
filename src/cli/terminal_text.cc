#include "cli/terminal_text.h"

#include "tokenizer/unicode.h"

namespace switchyard {

std::string terminal_text(std::string_view text) {
  const std::string valid = repaired_utf8(text);
  std::string shown;
  for_characters(valid, [&](std::string_view character) {
    const std::uint32_t point = code_point(character);
    const bool control = (point < 0x20 && point != '\n' && point != '\t') || (point >= 0x7f && point < 0xa0);
    shown += control ? utf8_of(0xfffd) : std::string(character);
  });
  return shown;
}

}  // namespace switchyard

#include "tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>

#include "core/error.h"
#include "tokenizer/unicode_tables.h"

namespace switchyard {
namespace {

constexpr const char* kReplacement = "\xef\xbf\xbd";

std::array<std::uint32_t, 256> byte_alphabet() {
  std::array<std::uint32_t, 256> alphabet{};
  std::uint32_t next = 256;
  for (std::uint32_t b = 0; b < 256; ++b) {
    const bool printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
    alphabet[b] = printable ? b : next++;
  }
  return alphabet;
}

// Bytes of the broken sequence at text[at] that could have started a character: at least 1.
std::size_t broken_length(std::string_view text, std::size_t at) {
  // Whatever completes a maximal subpart with continuation bytes to a character shows that it is one.
  for (std::size_t length = std::min<std::size_t>(3, text.size() - at); length > 1; --length) {
    for (std::size_t missing = 1; length + missing <= 4; ++missing) {
      for (const char fill : {'\x80', '\xbf'}) {
        std::string whole(text.substr(at, length));
        whole.append(missing, fill);
        if (utf8_length(whole, 0) == whole.size()) return length;
      }
    }
  }
  return 1;
}

// The normal form of a text whose characters are no newer than the library's normal forms.
std::string known_normal_form(std::string_view text, NormalForm form) {
  if (text.empty()) return "";
  const bool composes = form == NormalForm::nfc || form == NormalForm::nfkc;
  const bool compatible = form == NormalForm::nfkc || form == NormalForm::nfkd;
  const int options = UTF8PROC_STABLE | (composes ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                      (compatible ? UTF8PROC_COMPAT : 0);
  utf8proc_uint8_t* mapped_text = nullptr;
  const auto length = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                   static_cast<utf8proc_ssize_t>(text.size()), &mapped_text,
                                   static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<utf8proc_uint8_t, void (*)(void*)> owner(mapped_text, std::free);
  if (length < 0) fail_runtime("[tokenizer] normalisation failed: {}", utf8proc_errmsg(length));
  return {reinterpret_cast<const char*>(mapped_text), static_cast<std::size_t>(length)};
}

}  // namespace

std::size_t utf8_length(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) -> std::uint32_t {
    return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0u;
  };
  if (at >= text.size()) return 0;
  const std::uint32_t first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xf5   ? 0
                             : first >= 0xf0 ? 4
                             : first >= 0xe0 ? 3
                             : first >= 0xc2 ? 2
                                             : 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0u) != 0x80u) return 0;
  }
  if ((first == 0xe0 && byte(1) < 0xa0) || (first == 0xed && byte(1) >= 0xa0))
    return 0;  // overlong, surrogates
  if ((first == 0xf0 && byte(1) < 0x90) || (first == 0xf4 && byte(1) >= 0x90))
    return 0;  // overlong, > U+10FFFF
  return length;
}

std::string valid_utf8(std::string_view text) {
  std::string valid;
  valid.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = utf8_length(text, at);
    if (length == 0) {
      valid += kReplacement;
      ++at;
    } else {
      valid.append(text, at, length);
      at += length;
    }
  }
  return valid;
}

std::string repaired_utf8(std::string_view text) {
  std::string repaired;
  repaired.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = utf8_length(text, at);
    if (length == 0) {
      repaired += kReplacement;
      at += broken_length(text, at);
    } else {
      repaired.append(text, at, length);
      at += length;
    }
  }
  return repaired;
}

std::string utf8_of(std::uint32_t c) {
  const auto tail = [&](int shift) { return static_cast<char>(0x80u | ((c >> shift) & 0x3fu)); };
  if (c < 0x80) return {static_cast<char>(c)};
  if (c < 0x800) return {static_cast<char>(0xc0u | (c >> 6)), tail(0)};
  if (c < 0x10000) return {static_cast<char>(0xe0u | (c >> 12)), tail(6), tail(0)};
  return {static_cast<char>(0xf0u | (c >> 18)), tail(12), tail(6), tail(0)};
}

std::uint32_t code_point(std::string_view character) {
  const auto first = static_cast<unsigned char>(character[0]);
  if (first < 0x80) return first;
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (character.size() < length) return 0xfffd;
  std::uint32_t c = first & (0x7fu >> length);
  for (std::size_t i = 1; i < length; ++i) c = (c << 6) | (static_cast<unsigned char>(character[i]) & 0x3fu);
  return c;
}

bool is_white_space(std::uint32_t c) {
  return (c >= 0x9 && c <= 0xd) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}
bool is_mark(std::uint32_t c) {
  return in_ranges(unicode_tables().old_marks, c);
}
bool is_nonspacing_mark(std::uint32_t c) {
  return in_ranges(unicode_tables().old_nonspacing, c);
}
bool is_other(std::uint32_t c) {
  const bool private_use = (c >= 0xf0000 && c <= 0xffffd) || (c >= 0x100000 && c <= 0x10fffd);
  return private_use || in_ranges(unicode_tables().old_other, c);
}

std::string normal_form(const std::string& text, NormalForm form) {
  const auto ascii = [](char c) { return static_cast<unsigned char>(c) < 0x80; };
  if (std::all_of(text.begin(), text.end(), ascii)) return text;
  std::string normal;
  std::size_t begin = 0, at = 0;
  for_characters(text, [&](std::string_view character) {
    if (character.size() > 1 && in_ranges(unicode_tables().beyond_normal, code_point(character))) {
      normal.append(known_normal_form(std::string_view(text).substr(begin, at - begin), form)).append(character);
      begin = at + character.size();
    }
    at += character.size();
  });
  return normal.append(known_normal_form(std::string_view(text).substr(begin), form));
}

std::string lower_case(std::string_view text) {
  std::string lower;
  lower.reserve(text.size());
  for_characters(text, [&](std::string_view character) {
    const std::uint32_t c = code_point(character);
    // The only character whose lower case is two.
    lower += c == 0x130 ? "i\u0307" : utf8_of(mapped(unicode_tables().lower, c));
  });
  return lower;
}

std::vector<std::size_t> grapheme_ends(std::string_view text) {
  std::vector<std::size_t> ends;
  utf8proc_int32_t state = 0, before = -1;
  std::size_t at = 0;
  for_characters(text, [&](std::string_view character) {
    const auto c = static_cast<utf8proc_int32_t>(code_point(character));
    if (before >= 0 && utf8proc_grapheme_break_stateful(before, c, &state)) ends.push_back(at);
    before = c;
    at += character.size();
  });
  if (at > 0) ends.push_back(at);
  return ends;
}

std::string bytes_to_alphabet(std::string_view bytes) {
  static const auto alphabet = byte_alphabet();
  std::string text;
  for (char c : bytes) text += utf8_of(alphabet[static_cast<unsigned char>(c)]);
  return text;
}

std::optional<std::string> alphabet_to_bytes(std::string_view text) {
  static const auto byte_of = [] {
    std::array<std::int16_t, 512> table{};
    table.fill(-1);
    const auto alphabet = byte_alphabet();
    for (std::size_t b = 0; b < 256; ++b) table[alphabet[b]] = static_cast<std::int16_t>(b);
    return table;
  }();
  std::string bytes;
  bool known = true;
  for_characters(text, [&](std::string_view character) {
    const std::uint32_t c = code_point(character);
    known = known && c < byte_of.size() && byte_of[c] >= 0;
    if (known) bytes += static_cast<char>(byte_of[c]);
  });
  return known ? std::optional(bytes) : std::nullopt;
}

}  // namespace switchyard

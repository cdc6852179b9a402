// The parts of Unicode that tokenizers need: UTF-8, classes of characters, normal forms.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard {

// Bytes of the UTF-8 character that begins at text[at]; 0 if there is none (broken,
// overlong, a surrogate, cut off).
std::size_t utf8_length(std::string_view text, std::size_t at);

// Replaces each byte that belongs to no character by U+FFFD.
std::string valid_utf8(std::string_view text);

// Replaces each broken sequence by one U+FFFD, as the Unicode standard recommends (3.9, "maximal subparts")
// and as Rust and Python do on decoding.
std::string repaired_utf8(std::string_view text);

// Encodes a code point up to U+10FFFF as UTF-8.
std::string utf8_of(std::uint32_t code_point);

// The first character of a non-empty text; U+FFFD if it is cut off.
std::uint32_t code_point(std::string_view character);

// Calls body(character) for the characters of a valid text in order.
template <typename Body>
void for_characters(std::string_view text, Body body) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = utf8_length(text, at) > 1 ? utf8_length(text, at) : 1;
    body(text.substr(at, length));
    at += length;
  }
}

bool is_white_space(std::uint32_t code_point);  // the property White_Space
// Each tells a class of the library's normalizers (unicode_tables.h): marks, marks without width,
// and control characters and their like.
bool is_mark(std::uint32_t code_point);
bool is_nonspacing_mark(std::uint32_t code_point);
bool is_other(std::uint32_t code_point);

// Characters that are newer than the library's normal forms stay as they are, and nothing combines with them.
enum class NormalForm { nfc, nfd, nfkc, nfkd };
std::string normal_form(const std::string& text, NormalForm form);

// Each character's full lower case, regardless of its neighbours.
std::string lower_case(std::string_view text);

// Ends of the extended grapheme clusters of a valid text, in bytes, ascending.
std::vector<std::size_t> grapheme_ends(std::string_view text);

// GPT-2's byte alphabet: printable Latin-1 bytes map to themselves, the others to U+0100 and up, in order.
std::string bytes_to_alphabet(std::string_view bytes);
// The inverse; nothing when the text has a character outside the alphabet.
std::optional<std::string> alphabet_to_bytes(std::string_view text);

}  // namespace switchyard

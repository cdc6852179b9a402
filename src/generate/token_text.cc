#include "generate/token_text.h"

#include <algorithm>
#include <string_view>

namespace switchyard {
namespace {

constexpr std::size_t kContext = 8;  // tokens before the first one that may change how it reads
constexpr std::string_view kBroken = "\xef\xbf\xbd";

// Bytes of a character by its first one; 1 of what begins none.
std::size_t bytes_of_character(char first) {
  const auto byte = static_cast<unsigned char>(first);
  return byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
}

bool has_character_at(const std::string& text, std::size_t at) {
  const std::size_t bytes = bytes_of_character(text[at]);
  if (at + bytes > text.size() || text.compare(at, kBroken.size(), kBroken) == 0) return false;
  if (bytes == 1) return static_cast<unsigned char>(text[at]) < 0x80;
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((static_cast<unsigned char>(text[at + i]) & 0xc0) != 0x80) return false;
  }
  return true;
}

}  // namespace

std::size_t whole_characters(const std::string& text) {
  std::size_t end = text.size();
  while (end >= kBroken.size() && text.compare(end - kBroken.size(), kBroken.size(), kBroken) == 0)
    end -= kBroken.size();
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, end); ++back) {
    const auto byte = static_cast<unsigned char>(text[end - back]);
    if (byte < 0x80) break;
    if (byte < 0xc0) continue;
    return bytes_of_character(text[end - back]) > back ? end - back : end;
  }
  return end;
}

TokenText::TokenText(const Tokenizer& tokenizer, std::span<const std::int32_t> before, bool keep_special)
    : tokenizer_(tokenizer), keep_special_(keep_special) {
  const auto context = before.last(std::min(kContext, before.size()));
  window_.assign(context.begin(), context.end());
  seen_ = window_.size();
  const std::string text = decode();
  given_ = whole_characters(text);
  begun_ = text.size() - given_;
}

std::string TokenText::add(std::int32_t token) {
  window_.push_back(token);
  const std::string text = decode();
  const std::size_t whole = whole_characters(text);
  if (whole <= given_) return "";
  // Bytes of the tokens before that never become a character are not of the new text.
  if (!has_character_at(text, given_)) given_ = std::min(given_ + begun_, whole);
  begun_ = 0;
  std::string added = text.substr(given_, whole - given_);
  given_ = whole;
  if (whole == text.size()) {  // the tokens of this text are what the next ones stand after
    window_.erase(window_.begin(), window_.begin() + static_cast<std::ptrdiff_t>(seen_));
    seen_ = window_.size();
    given_ = decode().size();
  }
  return added;
}

std::string TokenText::finish() const {
  const std::string text = decode();
  return text.substr(std::min(given_ + begun_, text.size()));
}

std::string TokenText::decode() const {
  return keep_special_ ? tokenizer_.decode_all(window_) : tokenizer_.decode(window_);
}

std::string text_within(const Tokenizer& tokenizer, std::int32_t token) {
  const std::int32_t twice[] = {token, token};
  const std::string one = tokenizer.decode(std::span(twice, 1)), two = tokenizer.decode(twice);
  return two.starts_with(one) ? two.substr(one.size()) : one;
}

}  // namespace switchyard

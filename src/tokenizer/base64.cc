#include "tokenizer/base64.h"

#include <cstdint>

namespace switchyard {
namespace {

constexpr std::string_view kBase64Digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

}  // namespace

std::optional<std::string> from_base64(std::string_view text) {
  if (text.size() % 4 != 0) return {};
  for (int padding = 0; padding < 2 && text.ends_with('='); ++padding) text.remove_suffix(1);
  std::string bytes;
  std::uint32_t bits = 0;
  int count = 0;
  for (char c : text) {
    const std::size_t digit = kBase64Digits.find(c);
    if (digit == std::string_view::npos) return {};
    bits = (bits << 6) | static_cast<std::uint32_t>(digit);
    if ((count += 6) >= 8) bytes += static_cast<char>((bits >> (count -= 8)) & 0xffu);
  }
  return bytes;
}

std::string to_base64(std::string_view bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  std::uint32_t bits = 0;
  int count = 0;
  for (const char byte : bytes) {
    bits = (bits << 8) | static_cast<unsigned char>(byte);
    for (count += 8; count >= 6; count -= 6) text += kBase64Digits[bits >> (count - 6) & 63];
  }
  if (count > 0) text += kBase64Digits[bits << (6 - count) & 63];
  text.resize((text.size() + 3) / 4 * 4, '=');
  return text;
}

}  // namespace switchyard

#include "chat/continued_text.h"

#include <algorithm>

#include "tokenizer/unicode.h"

namespace switchyard::chat {
namespace {

// The space at its end tells whether the template trims the message.
constexpr std::string_view kMark = "THE_FINAL_MESSAGE_ENDS_HERE ";
constexpr const char* kContinueField = "continue_final_message";

[[noreturn]] void refuse_to_continue(const std::string& reason, const char* code) {
  throw BadRequest(kContinueField, std::string(kContinueField) + ": " + reason, code);
}

// Returns whether Python's strip() takes the code point away.
bool is_python_space(std::string_view character) {
  const std::uint32_t c = code_point(character);
  return is_white_space(c) || (c >= 0x1c && c <= 0x1f);
}

std::size_t end_without_space(std::string_view text) {
  std::size_t at = 0, end = 0;
  for_characters(text, [&](std::string_view character) {
    at += character.size();
    if (!is_python_space(character)) end = at;
  });
  return end;
}

std::string_view stripped(std::string_view text) {
  text = text.substr(0, end_without_space(text));
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::string_view character = text.substr(begin, std::max<std::size_t>(utf8_length(text, begin), 1));
    if (!is_python_space(character)) break;
    begin += character.size();
  }
  return text.substr(begin);
}

void cut_at(jinja::Rendered& rendered, std::size_t end) {
  rendered.text.resize(end);
  std::erase_if(rendered.foreign, [&](const TextRange& range) { return range.begin >= end; });
  if (!rendered.foreign.empty()) rendered.foreign.back().end = std::min(rendered.foreign.back().end, end);
}

}  // namespace

std::string mark_final_message(jinja::Json& messages, std::string_view template_text) {
  jinja::Json& content = messages.back()["content"];
  if (template_text.find("content") == std::string_view::npos)
    refuse_to_continue("the chat template does not read content", "template_error");
  if (content.is_string()) {
    const auto text = content.get<std::string>();
    content = text + std::string(kMark);
    return text;
  }
  if (!content.is_array() || content.empty())
    refuse_to_continue("the final message has no text to continue", "invalid_value");
  jinja::Json& last = content.back()["text"];
  const auto text = last.get<std::string>();
  last = text + std::string(kMark);
  return text;
}

void cut_after_final_message(jinja::Rendered& rendered, std::string_view final_text) {
  const std::string_view bare = kMark.substr(0, kMark.size() - 1);
  const std::size_t place = rendered.text.rfind(bare);
  if (place == std::string::npos || rendered.text.find(stripped(final_text)) == std::string::npos)
    refuse_to_continue("the chat template does not show the final message as it is", "template_error");
  const bool kept = rendered.text.compare(place, kMark.size(), kMark) == 0;
  cut_at(rendered, kept ? place : end_without_space(std::string_view(rendered.text).substr(0, place)));
}

}  // namespace switchyard::chat

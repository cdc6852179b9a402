#include "generate/token_text.h"

#include <algorithm>

namespace switchyard {
namespace {

constexpr std::size_t kContext = 8;  // tokens before the first one that may change how it reads

}  // namespace

std::size_t whole_characters(const std::string& text) {
  const std::string broken = "\xef\xbf\xbd";
  std::size_t end = text.size();
  while (end >= broken.size() && text.compare(end - broken.size(), broken.size(), broken) == 0)
    end -= broken.size();
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, end); ++back) {
    const auto byte = static_cast<unsigned char>(text[end - back]);
    if (byte < 0x80) break;
    if (byte < 0xc0) continue;
    const std::size_t wanted = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : 2;
    return wanted > back ? end - back : end;
  }
  return end;
}

TokenText::TokenText(const Tokenizer& tokenizer, std::span<const std::int32_t> before)
    : tokenizer_(tokenizer) {
  const auto context = before.last(std::min(kContext, before.size()));
  window_.assign(context.begin(), context.end());
  seen_ = window_.size();
  given_ = whole_characters(tokenizer_.decode(window_));
}

std::string TokenText::add(std::int32_t token) {
  window_.push_back(token);
  const std::string text = tokenizer_.decode(window_);
  const std::size_t whole = whole_characters(text);
  if (whole <= given_) return "";
  std::string added = text.substr(given_, whole - given_);
  given_ = whole;
  if (whole == text.size()) {  // the tokens of this text are what the next ones stand after
    window_.erase(window_.begin(), window_.begin() + static_cast<std::ptrdiff_t>(seen_));
    seen_ = window_.size();
    given_ = tokenizer_.decode(window_).size();
  }
  return added;
}

std::string TokenText::finish() const {
  const std::string text = tokenizer_.decode(window_);
  return text.substr(std::min(given_, text.size()));
}

std::string text_within(const Tokenizer& tokenizer, std::int32_t token) {
  const std::int32_t twice[] = {token, token};
  const std::string one = tokenizer.decode(std::span(twice, 1)), two = tokenizer.decode(twice);
  return two.starts_with(one) ? two.substr(one.size()) : one;
}

}  // namespace switchyard

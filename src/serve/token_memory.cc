#include "serve/token_memory.h"

#include <algorithm>

namespace switchyard::serve {
namespace {

constexpr std::size_t kLongestSpecial = 128;  // bytes of a special token's text

bool touches(std::span<const TextRange> ranges, std::size_t begin, std::size_t end) {
  const auto range = std::ranges::partition_point(ranges, [&](const TextRange& r) { return r.end <= begin; });
  return range != ranges.end() && range->begin < end;
}

}  // namespace

void TokenMemory::keep(const CacheDomain& domain, std::span<const std::int32_t> prompt,
                       std::span<const std::int32_t> made) {
  Chat chat;
  chat.domain = domain;
  chat.tokens.assign(prompt.begin(), prompt.end());
  chat.tokens.insert(chat.tokens.end(), made.begin(), made.end());
  for (const std::int32_t& token : chat.tokens) {
    const std::optional<std::string> bytes = tokenizer_.token_bytes(token);
    chat.text += bytes ? *bytes : tokenizer_.decode_all(std::span(&token, 1));
    chat.ends.push_back(chat.text.size());
  }
  const std::lock_guard lock(mutex_);
  // The chat's earlier turns are parts of it.
  std::erase_if(chats_, [&](const Chat& old) {
    const bool is_part = chat.domain == old.domain && chat.text.starts_with(old.text) &&
                         std::equal(old.tokens.begin(), old.tokens.end(), chat.tokens.begin());
    if (is_part) bytes_ -= old.text.size();
    return is_part;
  });
  bytes_ += chat.text.size();
  chats_.push_front(std::move(chat));
  while (bytes_ > most_bytes_ && chats_.size() > 1) {
    bytes_ -= chats_.back().text.size();
    chats_.pop_back();
  }
}

TokenMemory::Beginning TokenMemory::longest_beginning(const CacheDomain& domain, const std::string& text,
                                                      std::span<const TextRange> plain) {
  Beginning best;
  const std::lock_guard lock(mutex_);
  // The rest of the prompt is encoded alone, so it must begin with a special token, which parts texts.
  const auto parts_at = [&](std::size_t at) {
    if (at >= text.size()) return true;
    const std::vector<std::int32_t> ids =
        tokenizer_.encode_with_special(std::string_view(text).substr(at, kLongestSpecial));
    return !ids.empty() && is_special(ids[0]) && !touches(plain, at, at + 1);
  };
  auto best_chat = chats_.end();
  for (auto chat = chats_.begin(); chat != chats_.end(); ++chat) {
    if (chat->domain != domain) continue;
    const std::size_t most = std::min(text.size(), chat->text.size());
    const auto same = static_cast<std::size_t>(
        std::mismatch(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(most), chat->text.begin())
            .first -
        text.begin());
    if (same <= best.bytes) continue;
    const auto end = std::upper_bound(chat->ends.begin(), chat->ends.end(), same);
    auto count = static_cast<std::size_t>(end - chat->ends.begin());
    for (std::size_t i = 0; i < count;
         ++i) {  // a special token that the request wrote as text ends the beginning
      const std::size_t begin = i == 0 ? 0 : chat->ends[i - 1];
      if (is_special(chat->tokens[i]) && touches(plain, begin, chat->ends[i])) count = i;
    }
    if (count > 0 && !parts_at(chat->ends[count - 1])) {
      do --count;
      while (count > 0 && !is_special(chat->tokens[count]));
    }
    if (count == 0 || chat->ends[count - 1] <= best.bytes) continue;
    best.tokens.assign(chat->tokens.begin(), chat->tokens.begin() + static_cast<std::ptrdiff_t>(count));
    best.bytes = chat->ends[count - 1];
    best_chat = chat;
  }
  if (best_chat != chats_.end()) chats_.splice(chats_.begin(), chats_, best_chat);
  return best;
}

std::vector<std::int32_t> TokenMemory::encode(const CacheDomain& domain, const std::string& text,
                                              std::span<const TextRange> plain) {
  Beginning beginning = longest_beginning(domain, text, plain);
  std::vector<TextRange> rest;
  for (const TextRange& range : plain) {
    if (range.end > beginning.bytes)
      rest.push_back({std::max(range.begin, beginning.bytes) - beginning.bytes, range.end - beginning.bytes});
  }
  const std::vector<std::int32_t> more =
      tokenizer_.encode_with_special(std::string_view(text).substr(beginning.bytes), rest);
  beginning.tokens.insert(beginning.tokens.end(), more.begin(), more.end());
  return std::move(beginning.tokens);
}

void TokenMemory::clear() {
  const std::lock_guard lock(mutex_);
  chats_.clear();
  bytes_ = 0;
}

}  // namespace switchyard::serve

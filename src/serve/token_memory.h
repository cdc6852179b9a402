// TokenMemory: the tokens of recent chats. A client passes a model's answer back as text, and the tokens of
// that text may be others than those that the model made; then nothing that the cache has of the answer could
// be used again. So a prompt that begins with the text of a recent chat gets the tokens of that chat. Any
// thread may call any function.
#pragma once

#include <cstdint>
#include <list>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "core/text_range.h"
#include "serve/texts.h"
#include "tokenizer/tokenizer.h"

namespace switchyard::serve {

class TokenMemory {
 public:
  // The tokenizer must outlive the memory, which keeps at most `most_bytes` of texts.
  explicit TokenMemory(const Tokenizer& tokenizer, std::size_t most_bytes = std::size_t{32} << 20)
      : tokenizer_(tokenizer), most_bytes_(most_bytes) {}

  // Keeps a chat: its prompt's tokens and those that the model made.
  void keep(const CacheDomain& domain, std::span<const std::int32_t> prompt,
            std::span<const std::int32_t> made);
  // Encodes a prompt as Tokenizer::encode_with_special does, but uses the tokens of a kept chat of the same
  // domain for a beginning that has the same text. A kept chat's special token is never
  // used for text in `plain`.
  std::vector<std::int32_t> encode(const CacheDomain& domain, const std::string& text,
                                   std::span<const TextRange> plain);
  // Forgets all chats.
  void clear();

 private:
  struct Chat {
    CacheDomain domain;
    std::string text;
    std::vector<std::int32_t> tokens;
    std::vector<std::size_t> ends;  // of each token in the text
  };
  struct Beginning {
    std::vector<std::int32_t> tokens;
    std::size_t bytes = 0;
  };
  bool is_special(std::int32_t token) const { return !tokenizer_.token_bytes(token).has_value(); }
  Beginning longest_beginning(const CacheDomain& domain, const std::string& text,
                              std::span<const TextRange> plain);

  const Tokenizer& tokenizer_;
  const std::size_t most_bytes_;
  std::mutex mutex_;       // guards what follows
  std::list<Chat> chats_;  // the one used last comes first
  std::size_t bytes_ = 0;
};

}  // namespace switchyard::serve

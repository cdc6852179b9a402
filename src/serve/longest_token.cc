#include "serve/longest_token.h"

#include <algorithm>
#include <string>

namespace switchyard::serve {
namespace {

// Composing characters (NFC, NFKC) makes at most so many bytes one.
constexpr std::size_t kComposed = 4;

// Characters that tokenizers drop, join or do not know.
constexpr const char* kProbes[] = {" ",      "\n",     "\t",     "\x01",   "A",
                                   "\u0301", "\u00ad", "\u200b", "\ufeff", "\U0001f984"};

}  // namespace

std::size_t longest_token_bytes(const Tokenizer& tokenizer, std::int64_t vocab) {
  std::size_t longest = 1;
  for (std::int32_t id = 0; id < std::min<std::int64_t>(vocab, tokenizer.vocab_size()); ++id) {
    const std::optional<std::string> bytes = tokenizer.token_bytes(id);
    longest = std::max(longest, bytes ? bytes->size() : tokenizer.decode_all({{id}}).size());
  }
  longest *= kComposed;
  for (const std::string character : kProbes) {
    std::string text;
    while (text.size() < 16 * longest) text += character;
    if (tokenizer.encode(text).size() * longest < text.size()) return 0;
  }
  return longest;
}

}  // namespace switchyard::serve

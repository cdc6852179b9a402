// The first byte chooses the kind of file (a tokenizer.json, Kimi's vocabulary, another one in tiktoken's form); the rest up to a 0xff is the file, and what follows a text.
// Reading the file, encoding and decoding either work or throw an Error.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/error.h"
#include "tokenizer/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::size_t gap = std::min(input.find('\xff'), input.size());
  const std::string_view file = input.substr(0, gap), text = input.substr(std::min(gap + 1, input.size()));
  try {
    const auto tokenizer = data[0] % 2 == 0 ? switchyard::parse_huggingface(file, "", "input")
                                            : switchyard::parse_tiktoken(file, "", data[0] % 4 == 1 ? "tiktoken.model" : "input");
    for (std::string_view t : {text, std::string_view("Hello  world's 123 \xe6\x97\xa5")}) {
      const auto ids = tokenizer->encode(t);
      for (std::int32_t id : ids) CHECK(id >= 0 && id < tokenizer->vocab_size(), "id {}", id);
      tokenizer->decode(ids);
    }
  } catch (const switchyard::Error&) {
  }
  return 0;
}

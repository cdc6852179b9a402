// Any bytes as a GGUF file: read whole, or refused with an Error.
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/error.h"
#include "gguf/gguf_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using switchyard::GgufFile;
  try {
    const auto file = GgufFile::parse(std::as_bytes(std::span(data, size)), "input");
    std::size_t bytes = 0;
    for (const auto& [name, entry] : file.entries()) {
      bytes += entry.bytes.size();
      file.read(name);
    }
    CHECK(bytes <= size, "{} bytes of tensors in {}", bytes, size);
  } catch (const switchyard::Error&) {
  }
  return 0;
}

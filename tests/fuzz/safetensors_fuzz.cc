// Any bytes as a safetensors file: read whole, or refused with an Error.
#include <cstddef>
#include <cstdint>
#include <span>

#include "checkpoint/safetensors.h"
#include "core/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using switchyard::SafetensorsFile;
  try {
    const auto file = SafetensorsFile::parse(std::as_bytes(std::span(data, size)), "input");
    std::size_t bytes = 0;
    for (const auto& [name, entry] : file.entries()) {
      bytes += entry.bytes.size();
      try {
        file.read(name);
      } catch (const switchyard::Error&) {  // a dtype or value that does not convert
      }
    }
    CHECK(bytes <= size, "{} bytes of tensors in {}", bytes, size);
  } catch (const switchyard::Error&) {
  }
  return 0;
}
